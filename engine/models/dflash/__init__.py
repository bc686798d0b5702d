"""DFLASH drafts."""
