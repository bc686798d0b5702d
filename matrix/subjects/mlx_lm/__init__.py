"""mlx-lm as a subject: its generators and its server's prompt cache, on a CPU."""
