"""Ring 1: model definitions and loading."""
