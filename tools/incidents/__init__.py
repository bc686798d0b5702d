"""Real incidents as data, and their replay on this engine."""
