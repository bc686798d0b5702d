"""Real checkpoints for the GPU tiers: which, where they lie on this machine, and what they need."""
