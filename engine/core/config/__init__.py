"""Configuration: requested, resolved, effective."""
