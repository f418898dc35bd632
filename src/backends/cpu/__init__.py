"""The native CPU library: its build, its threads, and its calls from Python."""
