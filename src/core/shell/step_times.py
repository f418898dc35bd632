"""Estimates the maximum duration of a step from the durations of earlier steps."""

from __future__ import annotations

MEMORY = 0.01
"""Fraction by which the expected duration of a step shrinks with each shorter step of its size."""
SMALL_STEP = 16
"""Tokens. Steps with fewer take about as long as one with a single token: reading the weights takes
most of the time."""
UNSEEN = 0.3
"""Expected duration of a step that is larger than all before, as a fraction of the time that its
tokens would take in the nearest smaller steps. A step is stalled after ten times its expected
duration (STALL_FACTOR), so such a step may take three times that time. More is not needed: a larger
step takes no more time per token, and the first small steps were slow because they were first."""


class StepTimes:
    """The durations of steps, by powers of two of their number of tokens.

    A long prompt takes a hundred times as long as a decode step, and may come again after thousands
    of decode steps. So a long prompt does not raise the expected duration of decode steps, and
    decode steps do not lower that of long prompts.
    """

    def __init__(self, load_seconds: float) -> None:
        """`load_seconds`: how long the model took to load. The first step may take as long: both
        read all weights, and nothing else is known about it."""
        self._load_seconds = load_seconds
        self._longest: dict[int, float] = {}
        """Seconds of the longest recent step, by size: see `_size`."""

    def note(self, num_tokens: int, seconds: float) -> None:
        """Note how long a step took."""
        size = _size(num_tokens)
        self._longest[size] = max(seconds, (1 - MEMORY) * self._longest.get(size, 0.0))

    def expected(self, num_tokens: int) -> float:
        """Maximum seconds that a step with this number of tokens is expected to take."""
        if not self._longest:
            return self._load_seconds
        size = _size(num_tokens)
        smaller = [known for known in self._longest if known <= size]
        if not smaller:
            return self._longest[min(self._longest)]
        nearest = max(smaller)
        growth = 1.0 if nearest == size else max(1.0, UNSEEN * 2.0 ** (size - nearest))
        return max(growth * self._longest[nearest], *(self._longest[known] for known in smaller))


def _size(num_tokens: int) -> int:
    return max(num_tokens, SMALL_STEP).bit_length()
