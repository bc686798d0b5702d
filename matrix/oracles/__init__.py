"""Independent implementations for gates to compare the engine with; they share no code with it."""
