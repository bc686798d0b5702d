"""Fixture models: data, recipes, training, cards and an independent oracle."""
