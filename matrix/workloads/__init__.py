"""The requests of a cell."""
