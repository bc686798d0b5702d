"""Device operations, one folder each: a readable reference beside the fast implementations, with shared cases."""
