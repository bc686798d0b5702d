"""The engine's reports about its own work."""
