"""Logits processors: their contract, their calls, and our own."""
