"""Who owns KV pages."""
