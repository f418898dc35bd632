"""The native library: how it is built, found, checked and called."""
