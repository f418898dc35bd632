"""Measures the cost of steps with drafts, compared with recent steps without drafts.

The speed of a machine changes within seconds. So a step with drafts is compared with the median of
the last steps without drafts, while these are fresh, and only the ratio is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from math import log2
from statistics import median

PLAIN_STEPS = 5
"""Number of steps without drafts in the median: few, to follow the machine's speed, but enough to
ignore an outlier."""
FRESH_STEPS = 24
"""Number of steps for which this median is used for comparison."""
STALE_STEPS = 2000
"""Number of steps after which an old cost is dropped, so that its draft lengths are tried again."""
COST_SAMPLES = 16
"""Number of samples in the mean of a cost."""
OUTLIER = 1.5
"""Limit of a sample, as a multiple of the mean. A step is an outlier if the process was stopped."""


@dataclass(slots=True)
class _Mean:
    num_drafts: float
    cost: float
    last_step: int
    num_samples: int = 1

    def add(self, num_drafts: int, cost: float, step: int) -> None:
        """Add a sample. The second sample can only lower the first."""
        self.num_samples = min(self.num_samples + 1, COST_SAMPLES)
        weight = 1 / self.num_samples
        self.num_drafts += weight * (num_drafts - self.num_drafts)
        self.last_step = step
        if self.num_samples == 2:
            self.cost = min(self.cost, cost)
        else:
            self.cost += weight * (min(cost, OUTLIER * self.cost) - self.cost)


class StepCosts:
    """Costs of steps with about the same number of requests. A step without drafts costs 1."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=PLAIN_STEPS)
        self._last_plain = 0
        self._means: dict[int, _Mean] = {}
        """Mean costs, by bucket of the number of draft tokens in the step."""

    def is_comparable(self, step: int) -> bool:
        """Whether there are enough fresh steps without drafts for a comparison."""
        return len(self._plain) > PLAIN_STEPS // 2 and step - self._last_plain <= FRESH_STEPS

    def expire(self) -> None:
        """Drop the steps without drafts, so that new ones are measured."""
        self._plain.clear()

    def add_plain(self, seconds: float, step: int) -> None:
        """Add a step that verified no drafts, asked for none and was not delayed by any."""
        if step - self._last_plain > FRESH_STEPS:
            self._plain.clear()
        self._plain.append(seconds)
        self._last_plain = step

    def add(self, num_drafts: int, seconds: float, step: int) -> float:
        """Add any other step. `num_drafts` is the number of draft tokens that it verified, or 0.

        Returns its cost, or 1 if there is nothing to compare with.
        """
        if not self.is_comparable(step):
            return 1.0
        # Drafts never save time: less than 1 means that the machine has become faster.
        cost = max(1.0, seconds / median(self._plain))
        bucket = _bucket(num_drafts)
        mean = self._means.get(bucket)
        if mean is None or step - mean.last_step > STALE_STEPS:
            self._means[bucket] = _Mean(num_drafts, cost, step)
        else:
            mean.add(num_drafts, cost, step)
        return cost

    def line(self, step: int) -> CostLine:
        """The costs that are known at this step."""
        means = [m for _, m in sorted(self._means.items()) if step - m.last_step <= STALE_STEPS]
        return CostLine([(mean.num_drafts, mean.cost) for mean in means])


class CostLine:
    """Estimates the cost of a step by its number of draft tokens.

    It interpolates between points and never decreases. Beyond the last point it is constant, so
    that lengths that were never tried are not ruled out.
    """

    def __init__(self, points: list[tuple[float, float]]) -> None:
        """`points` are pairs of draft tokens and cost, in order. One at 0 is added if missing."""
        if not points or points[0][0]:
            points = [(0.0, 1.0), *points]
        self._counts = [count for count, _ in points]
        self._costs = list(accumulate((cost for _, cost in reversed(points)), min))[::-1]

    @property
    def end(self) -> float:
        """The largest number of draft tokens that was measured."""
        return self._counts[-1]

    def cost(self, num_drafts: float) -> float:
        """Estimated cost of a step with this many draft tokens."""
        right = bisect_left(self._counts, num_drafts)
        if not right or right == len(self._counts):
            return self._costs[max(0, right - 1)]
        counts, costs = self._counts[right - 1 : right + 1], self._costs[right - 1 : right + 1]
        slope = (costs[1] - costs[0]) / (counts[1] - counts[0])
        return costs[0] + slope * (num_drafts - counts[0])


def _bucket(num_drafts: int) -> int:
    """0 without draft tokens, then two buckets per power of two: twice the tokens may cost more."""
    return 1 + round(2 * log2(num_drafts)) if num_drafts else 0
