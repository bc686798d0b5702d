"""Instruments of this repository, run from a checkout and not installed: see CONTRIBUTING.md."""
