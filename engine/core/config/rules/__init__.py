"""Launch rules: what is refused or rewritten, by subject."""
