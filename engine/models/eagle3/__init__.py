"""EAGLE-3 drafts."""
