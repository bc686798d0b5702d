"""Subjects: engines under test. Gates use only the protocol, never an engine's internals."""
