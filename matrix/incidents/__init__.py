"""Real incidents as data, replayed on this engine."""
