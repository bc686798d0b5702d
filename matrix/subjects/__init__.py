"""Subjects: engines that gates can judge. Gates see only the protocol, never an engine's internals."""
