"""The fixture models of the project: their data, recipes, training, cards and an independent oracle."""
