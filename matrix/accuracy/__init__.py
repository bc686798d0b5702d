"""Task accuracy with lm-eval's own task definitions, paired between a cell and plain decoding."""
