"""The measurements of `specmatrix bench`: figures with a goal, from interleaved pairs of one run."""
