"""Hugging Face transformers with its own speculative decoding as a subject."""
