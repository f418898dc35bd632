"""The suite for linear backends."""
