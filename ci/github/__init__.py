"""Code that GitHub Actions runs: the composite action, and the script that posts a review."""
