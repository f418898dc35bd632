"""The choice of a computing backend among several that could serve."""
