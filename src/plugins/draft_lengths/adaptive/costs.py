"""What steps with drafts cost, compared with steps without drafts shortly before them.

A machine becomes slower and faster within seconds. So a step with drafts is compared with the median of
the last steps without, while these are fresh, and only the ratio is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from math import log2
from statistics import median

PLAIN_STEPS = 5
"""Steps without drafts in the median: few, to follow the machine, enough to ignore an outlier."""
FRESH_STEPS = 24
"""Steps for which others are compared with this median."""
STALE_STEPS = 2000
"""Steps after which a cost that was not measured again is forgotten, so that it is tried again."""
COST_SAMPLES = 16
"""Samples in the mean of a cost."""
OUTLIER = 1.5
"""A sample counts as at most this many times the mean: the process may have been stopped."""


@dataclass(slots=True)
class _Mean:
    num_drafts: float
    cost: float
    last_step: int
    num_samples: int = 1

    def add(self, num_drafts: int, cost: float, step: int) -> None:
        """Add a sample. The second one corrects the first only downwards."""
        self.num_samples = min(self.num_samples + 1, COST_SAMPLES)
        weight = 1 / self.num_samples
        self.num_drafts += weight * (num_drafts - self.num_drafts)
        self.last_step = step
        if self.num_samples == 2:
            self.cost = min(self.cost, cost)
        else:
            self.cost += weight * (min(cost, OUTLIER * self.cost) - self.cost)


class StepCosts:
    """Costs of steps with one number of requests. The unit is such a step without drafts."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=PLAIN_STEPS)
        self._last_plain = 0
        self._means: dict[int, _Mean] = {}
        """By bucket of the number of draft tokens in the step."""

    def is_comparable(self, step: int) -> bool:
        """Whether steps without drafts are known and fresh at this step."""
        return len(self._plain) > PLAIN_STEPS // 2 and step - self._last_plain <= FRESH_STEPS

    def expire(self) -> None:
        """Have steps without drafts measured anew."""
        self._plain.clear()

    def add_plain(self, seconds: float, step: int) -> None:
        """Add a step that had no drafts, asked for none and was not held back by any."""
        if step - self._last_plain > FRESH_STEPS:
            self._plain.clear()
        self._plain.append(seconds)
        self._last_plain = step

    def add(self, num_drafts: int, seconds: float, step: int) -> float:
        """Add any other step, with the draft tokens that it verified; 0 if none were found.

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
    """Cost of a step by its draft tokens: straight between points, and never less for more.

    Beyond the last point it is flat: what was never tried may be cheap.
    """

    def __init__(self, points: list[tuple[float, float]]) -> None:
        """`points` are pairs of draft tokens and cost, in order. One at 0 is added if missing."""
        if not points or points[0][0]:
            points = [(0.0, 1.0), *points]
        self._counts = [count for count, _ in points]
        self._costs = list(accumulate((cost for _, cost in reversed(points)), min))[::-1]

    @property
    def end(self) -> float:
        """The most draft tokens that were measured."""
        return self._counts[-1]

    def cost(self, num_drafts: float) -> float:
        """Estimate for this many draft tokens."""
        right = bisect_left(self._counts, num_drafts)
        if not right or right == len(self._counts):
            return self._costs[max(0, right - 1)]
        counts, costs = self._counts[right - 1 : right + 1], self._costs[right - 1 : right + 1]
        slope = (costs[1] - costs[0]) / (counts[1] - counts[0])
        return costs[0] + slope * (num_drafts - counts[0])


def _bucket(num_drafts: int) -> int:
    """0 for none, then two for each power of two: what doubles may cost much more."""
    return 1 + round(2 * log2(num_drafts)) if num_drafts else 0
