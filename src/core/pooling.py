"""How the hidden states of a prompt become one embedding."""

from __future__ import annotations

from enum import StrEnum


class Pooling(StrEnum):
    """Which hidden states of a prompt's tokens, after the model's last norm, make the embedding."""

    LAST = "last"
    """The state of the last token."""
    MEAN = "mean"
    """The average over all tokens."""
