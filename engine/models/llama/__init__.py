"""Llama, Mistral and Qwen3."""
