"""The conformance suite for draft algorithms, built in or registered."""
