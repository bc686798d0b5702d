"""Published checkpoints for the GPU tiers: the list, and their location on this machine."""
