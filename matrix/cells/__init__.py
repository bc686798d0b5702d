"""The possible cells: axes, cells and constraints."""
