"""Estimates the maximum duration of a step from the durations of earlier steps."""

from __future__ import annotations

from ...contract.client import STALL_FACTOR

MEMORY = 0.01
"""Fraction by which the expected duration of a step shrinks with each shorter step of its size."""
SMALL_STEP = 16
"""Tokens. Steps with fewer take about as long as one with a single token: reading the weights takes
most of the time."""


class StepTimes:
    """The durations of steps, by powers of two of their number of tokens.

    A long prompt takes a hundred times as long as a decode step, and may come again after thousands
    of decode steps. So a long prompt does not raise the expected duration of decode steps, and
    decode steps do not lower that of long prompts.
    """

    def __init__(self, load_seconds: float) -> None:
        """`load_seconds`: how long the model took to load. The first step may take as long, before
        it is stalled: both read all weights, and nothing else is known about it."""
        self._first = load_seconds / STALL_FACTOR
        self._longest: dict[int, float] = {}
        """Seconds of the longest recent step, by size: see `_size`."""

    def note(self, num_tokens: int, seconds: float) -> None:
        """Note how long a step took."""
        size = _size(num_tokens)
        self._longest[size] = max(seconds, (1 - MEMORY) * self._longest.get(size, 0.0))

    def expected(self, num_tokens: int) -> float:
        """Maximum seconds that a step with this number of tokens is expected to take."""
        if not self._longest:
            return self._first
        size = _size(num_tokens)
        smaller = [known for known in self._longest if known <= size]
        if not smaller:
            return self._longest[min(self._longest)]
        nearest = max(smaller)
        # A larger step takes no more time per token.
        growth = 2.0 ** (size - nearest)
        return max(growth * self._longest[nearest], *(self._longest[known] for known in smaller))


def _size(num_tokens: int) -> int:
    return max(num_tokens, SMALL_STEP).bit_length()
