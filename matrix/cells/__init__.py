"""What may run: axes, cells and constraints."""
