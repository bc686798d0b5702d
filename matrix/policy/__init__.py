"""The launch policy over every combination of launch settings: what is chosen, rewritten and refused, by which rule."""
