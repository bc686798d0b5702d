"""DeepSeek-V3's multi-token prediction layers."""
