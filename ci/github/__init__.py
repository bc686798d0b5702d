"""What GitHub Actions runs: the composite action, and what posts a review."""
