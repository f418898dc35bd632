"""Readers of quantized safetensors: one file per method, and a table of them."""
