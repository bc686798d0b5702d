"""vLLM with its own speculative decoding as a subject, in an environment of its own."""
