"""Timings: ratios from interleaved pairs of one run, one compute thread per process."""
