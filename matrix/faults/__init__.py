"""Planted faults: the proof that each gate can fail."""
