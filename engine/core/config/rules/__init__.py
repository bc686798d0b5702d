"""Configuration rules by subject: what is refused or rewritten."""
