"""vLLM with its own speculative decoding as a subject, in its own environment."""
