"""Ownership of KV pages."""
