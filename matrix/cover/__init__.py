"""The cells that run: generation, verification and the lock file."""
