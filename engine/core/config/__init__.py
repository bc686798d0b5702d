"""Configuration: asked, resolved, effective."""
