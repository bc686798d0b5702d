"""EAGLE drafts."""
