"""Instruments of this repository, run from a checkout and not installed: `python -m tools.mutants`,
`python -m tools.incidents`."""
