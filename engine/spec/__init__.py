"""Ring 2: drafting and judging."""
