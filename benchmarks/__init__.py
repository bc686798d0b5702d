"""What `specmatrix bench` measures: figures with a goal, from interleaved pairs of one run."""
