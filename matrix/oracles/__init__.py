"""Independent implementations that gates compare the engine with; they share no code with it."""
