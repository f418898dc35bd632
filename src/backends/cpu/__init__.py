"""The native CPU library: its build, its threads, and products with packed weights."""
