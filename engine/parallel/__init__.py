"""Ring 3: an engine over several processes, each a rank that holds a share of the target and runs the whole loop."""
