"""What does run: the frozen choice of cells."""
