"""Qwen3-Next and Qwen3.5: gated delta nets beside gated attention."""
