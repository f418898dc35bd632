"""Formats of packed weights: one file per family."""
