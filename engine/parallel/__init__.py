"""Ring 3: an engine over several processes. Each is a rank that holds a part of the target and runs the whole loop."""
