"""Running the matrix in CI: the test registry, the plan that shards cells over hosts, and the local executor."""
