"""The version of this package, apart from what it exports: every file may import it."""

__version__ = "0.2.0"
"""The version of tokenmill."""
