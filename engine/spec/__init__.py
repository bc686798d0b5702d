"""Ring 2: drafters and verification."""
