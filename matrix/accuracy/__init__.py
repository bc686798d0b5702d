"""Real task data through lm-eval's own task definition, paired between a cell and plain decoding."""
