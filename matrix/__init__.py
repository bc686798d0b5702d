"""The generated test matrix: axes, constraints, cells, cover and lock file, gates, faults and the zoo of models."""
