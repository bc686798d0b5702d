"""Published checkpoints for the GPU tiers: the list, their location on this machine, and their requirements."""
