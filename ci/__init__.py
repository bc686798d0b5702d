"""Running the matrix: tiers by price, the registry of tests, and the plan that shards cells over hosts."""
