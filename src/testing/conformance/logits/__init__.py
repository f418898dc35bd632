"""The suite for logits processors."""
