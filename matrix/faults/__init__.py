"""Planted faults (mutation testing), which prove that each gate can fail."""
