"""The reference engine: speculative decoding with every accounting step in the open."""
