"""Runs decoders that transformers knows, with the engine's attention and KV cache."""
