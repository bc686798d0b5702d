"""Device operations, one folder each: a readable reference next to the fast implementations, with shared cases."""
