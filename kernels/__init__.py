"""Device operations, one folder each: the readable definition beside the fast form, with shared cases."""
