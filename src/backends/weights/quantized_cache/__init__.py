"""Keeps the results of --quantize-on-load in files, so that the next start need not quantize."""
