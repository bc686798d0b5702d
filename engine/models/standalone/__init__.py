"""A small language model as a draft."""
