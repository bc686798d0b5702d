"""Scheduling: which requests run next."""
