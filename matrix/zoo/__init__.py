"""Models: fixture models with their data, recipes, training, cards and an independent oracle; published checkpoints."""
