"""What the engine reports about its own work."""
