"""Execution of cells, from a cell to its record."""
