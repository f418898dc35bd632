"""The conformance suite for grammar backends."""
