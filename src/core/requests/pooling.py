"""The way from the hidden states of a prompt to one embedding, and the form of the embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..errors import InvalidRequestError


class Pooling(StrEnum):
    """The hidden states, after the model's last norm, of which a prompt's embedding is made."""

    LAST = "last"
    """The state of the last token."""
    MEAN = "mean"
    """The average over all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """The form of embeddings. Names and meanings are those of vLLM.

    Raises InvalidRequestError, whose `param` is the name of the invalid field.
    """

    dimensions: int | None = None
    """Return only this many first numbers, before they are scaled. None: all, which is the model's
    hidden size. Useful only for models that were trained for it (Matryoshka embeddings)."""
    use_activation: bool = True
    """Scale the embedding to length 1. False: return it as it is."""
    truncate_prompt_tokens: int | None = None
    """Use only this many last tokens of the prompt; -1: those that fit into the context."""

    def __post_init__(self) -> None:
        size = self.dimensions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise InvalidRequestError(
                f"dimensions must be a positive integer, got {size!r}", param="dimensions"
            )

    def check(self, hidden_size: int) -> None:
        """Raise InvalidRequestError if the model's embeddings have fewer dimensions."""
        if self.dimensions is not None and self.dimensions > hidden_size:
            raise InvalidRequestError(
                f"this model's embeddings have {hidden_size} dimensions, got {self.dimensions}",
                param="dimensions",
            )

    def finish(self, embedding: Sequence[float]) -> tuple[float, ...]:
        """The embedding as these parameters want it. One of zeros is not scaled."""
        values = tuple(embedding[: self.dimensions])
        if not self.use_activation:
            return values
        length = math.hypot(*values) or 1.0
        return tuple(value / length for value in values)
