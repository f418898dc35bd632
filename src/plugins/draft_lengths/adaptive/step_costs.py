"""What decode steps cost by the number of their tokens: measured, and filled in between.

Steps without drafts and steps with drafts are kept apart: the latter also pay for not being planned
ahead, and several rows of one request are cheaper than rows of several.

Machines become slower and faster within seconds, and of both kinds of steps only one is seen at a time.
So the present pace is followed by steps of both kinds, and what is kept of each is its seconds at pace 1.
Steps that search for drafts and have none are of neither kind: what they take more is what searching costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, log2
from typing import NamedTuple

TRUSTED_SAMPLES = 2
"""A mean of fewer tells nothing: the first sample may be an accident."""
PACE_MEMORY, DRAFTING_PACE_MEMORY = 4, 8
"""The pace is a mean of so few samples, to follow a change before the means of steps do. Steps with
drafts tell less of it: where both disagree, it is what those cost that was learned at a wrong pace."""
PACE_OUTLIER = 1.25
"""A sample changes it no more than if it had taken so many times as long, or as short."""
SAME_COUNT = 0.05
"""Counts that differ by no more than this part are taken for the same: else more tokens would be taken
for a slower machine."""
STALE_STEPS = 2048
"""What was not measured for so many steps is measured anew: contexts grow, machines get busy."""
BASE_STALE_STEPS = 192
"""The same for steps without drafts, which every comparison rests on."""
FIRST_BASE_STALE_STEPS = 24
"""It begins with so many, and doubles, where steps cost what was not seen before: if the pace changes
just then, all of it goes into that cost, and nothing shows it but steps without drafts."""
VAIN_STEPS = 512
"""What searching for drafts takes is told of about so many of the last steps: then it may be another
text."""
QUIET_STEPS = 4
"""So many steps without drafts are measured then."""


class Memory(NamedTuple):
    """How a mean is kept."""

    num_samples: int
    """It is over about so many of the last ones."""
    outlier: float
    """A sample counts as at most so many times the mean: the process may have been stopped."""


STEPS = Memory(16, 1.5)
PASSES = Memory(256, 64.0)
"""Of proposing: some steps cost much, as a draft model computes what it missed, and what comes after
them has to bring that in."""


@dataclass(slots=True)
class _Point:
    """Mean of the samples of one bucket."""

    num_tokens: float = 0.0
    seconds: float = 0.0
    num_samples: int = 0
    last_step: int = 0

    def is_known(self, step: int) -> bool:
        """Whether the mean is to be trusted at this step."""
        return self.num_samples >= TRUSTED_SAMPLES and step - self.last_step <= STALE_STEPS

    def add(self, num_tokens: float, seconds: float, step: int, memory: Memory) -> None:
        """Take a sample in. The second one corrects the first only downwards."""
        self.num_samples = min(self.num_samples + 1, memory.num_samples)
        self.last_step = step
        self.num_tokens += (num_tokens - self.num_tokens) / self.num_samples
        if self.num_samples == 1:
            self.seconds = seconds
        elif self.num_samples <= TRUSTED_SAMPLES:
            self.seconds = min(self.seconds, seconds)
        else:
            seconds = min(seconds, memory.outlier * self.seconds)
            self.seconds += (seconds - self.seconds) / self.num_samples


class CostCurve:
    """Mean seconds over a count, for every bucket by itself."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._points: dict[int, _Point] = {}

    def add(self, count: int, seconds: float, step: int) -> None:
        """Take a sample in. `step` never decreases; the age of samples is told by it."""
        bucket = _bucket(count)
        point = self._points.get(bucket)
        if point is None or step - point.last_step > STALE_STEPS:
            point = self._points[bucket] = _Point()
        point.add(count, seconds, step, self._memory)

    def expect(self, count: int, step: int) -> float | None:
        """Seconds at this very count, once the mean there is one of as many samples as it keeps: what
        differs from it is rather a change of the pace."""
        point = self._points.get(_bucket(count))
        if point is None or not point.is_known(step):
            return None
        if point.num_samples < self._memory.num_samples:
            return None
        if abs(point.num_tokens - count) <= SAME_COUNT * count:
            return point.seconds
        points = self.points(step)
        if not points[0][0] < count < points[-1][0]:
            return None
        return CostLine(points).seconds(count)

    def add_change(self, count: int, change: float, step: int) -> None:
        """As `add`, of a sample that is so many times what was expected."""
        point = self._points[_bucket(count)]
        point.last_step = step
        if point.num_tokens != count:
            line = CostLine(self.points(step))
            moved = point.num_tokens + (count - point.num_tokens) / point.num_samples
            point.seconds *= line.seconds(moved) / line.seconds(point.num_tokens)
            point.num_tokens = moved
        point.seconds *= change ** (1 / point.num_samples)

    def age(self, count: float, step: int) -> int | None:
        """Steps since there was a sample near this count; None while that is not to be trusted."""
        point = self._points.get(_bucket(count))
        return step - point.last_step if point is not None and point.is_known(step) else None

    def points(self, step: int) -> list[tuple[float, float]]:
        """(count, seconds) of what is known, by count."""
        known = [point for _, point in sorted(self._points.items()) if point.is_known(step)]
        return [(point.num_tokens, point.seconds) for point in known]


def _bucket(count: float) -> int:
    """Two for each power of two: what doubles may cost much more."""
    return round(2 * log2(count))


def _bucket_end(bucket: int) -> int:
    """The first whole count beyond."""
    return ceil(2 ** ((bucket + 0.5) / 2))


class CostLine:
    """Seconds by count: straight lines between points, never less for more.

    It goes on to the end of the last point's bucket and is flat from there: what was never tried may
    be cheap.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """Points by count."""
        self._counts = [count for count, _ in points]
        self._seconds = list(accumulate((seconds for _, seconds in points), max))
        self.end = _bucket_end(_bucket(self._counts[-1])) if points else 0
        """Nothing is known from this count on."""

    def seconds(self, count: float) -> float:
        """Estimate; 0 while nothing is known."""
        counts, seconds = self._counts, self._seconds
        if len(counts) < 2:
            return seconds[0] if seconds else 0.0
        count = max(counts[0], min(count, self.end))
        right = min(bisect_right(counts, count), len(counts) - 1)
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (counts[right] - counts[left])
        return seconds[left] + slope * (count - counts[left])


def _go_back(points: Sequence[tuple[float, float]], count: float) -> float:
    """Where the line through the first two points was at this count before them: no more than there."""
    (left, seconds), (right, later) = points[:2]
    return seconds - (left - count) * max(0.0, later - seconds) / (right - left)


class StepCosts:
    """What the engine learned from its own steps; all seconds that it answers are at pace 1."""

    def __init__(self) -> None:
        self._base = CostCurve(STEPS)
        self._drafting = CostCurve(STEPS)
        self._passes = CostCurve(PASSES)
        self._vain = 0.0
        """Of the last steps, what it took to search for drafts in vain, in steps without any."""
        self._num_drafting = 0.0
        """Steps with drafts among them, which bring that in."""
        self._pace = 1.0
        """Seconds that now take what is kept as one."""
        self._step = 0
        self._base_stale_steps = FIRST_BASE_STALE_STEPS
        self._num_quiet = 0

    def add_step(
        self, num_requests: int, num_tokens: int, seconds: float, *, is_plain: bool = True
    ) -> float:
        """A step of decodes took `seconds`, proposing not counted; what it had more tokens than
        requests were drafts. Without such it `is_plain` if it was also not asked for drafts nor held
        back by those of others: what steps are like without speculation. Answers how much longer it
        took than such a step if it is not, as a part of it, as far as that is known."""
        self._step += 1
        self._vain -= self._vain / VAIN_STEPS
        self._num_drafting -= self._num_drafting / VAIN_STEPS
        if seconds <= 0:
            return 0.0  # a clock that jumped
        if num_tokens > num_requests:
            self._num_drafting += 1.0
            if self._drafting.age(num_tokens, self._step) is None:
                self._base_stale_steps = FIRST_BASE_STALE_STEPS
            self._add(self._drafting, num_tokens, seconds, DRAFTING_PACE_MEMORY)
        elif is_plain:
            self._add(self._base, num_tokens, seconds, PACE_MEMORY)
            self._num_quiet = max(0, self._num_quiet - 1)
        elif self._base.age(num_tokens, self._step) is not None:
            excess = min(self.in_steps(num_requests, seconds), PACE_OUTLIER) - 1.0
            self._vain += excess
            return excess
        return 0.0

    def _add(self, curve: CostCurve, num_tokens: int, seconds: float, pace_memory: int) -> None:
        expected = curve.expect(num_tokens, self._step)
        if expected is None:
            curve.add(num_tokens, seconds / self._pace, self._step)
            return
        # Both follow the same change: so they cannot drift apart.
        change = seconds / (expected * self._pace)
        change = min(max(change, 1 / PACE_OUTLIER), PACE_OUTLIER)
        self._pace *= change ** (1 / pace_memory)
        curve.add_change(num_tokens, change, self._step)

    def add_proposing(self, num_requests: int, num_passes: int, seconds: float) -> None:
        """So many requests were asked for; the longest of their drafts has `num_passes` tokens."""
        seconds = max(0.0, seconds)
        if num_passes:
            self._passes.add(num_requests, seconds / self._pace / num_passes, self._step)
        else:
            self._vain += self.in_steps(num_requests, seconds)

    def in_steps(self, num_requests: int, seconds: float) -> float:
        """How many steps of so many requests, without drafts, take these seconds at present; 0 while
        that is not known."""
        base = self._base_line().seconds(num_requests)
        return seconds / (base * self._pace) if base else 0.0

    def know_base(self, num_requests: int) -> bool:
        """Whether there is something to compare drafts with. If not, steps without drafts are due:
        a few, and then again a few from time to time."""
        age = self._base.age(num_requests, self._step)
        if age is None or age > self._base_stale_steps:
            if not self._num_quiet:
                self._base_stale_steps = min(2 * self._base_stale_steps, BASE_STALE_STEPS)
            self._num_quiet = QUIET_STEPS
        return not self._num_quiet

    def line(self, num_requests: int) -> CostLine:
        """Seconds of steps of `num_requests` tokens (no drafts) and more (the others are drafts),
        proposing not counted."""
        base = self._base.points(self._step)
        first = float(num_requests), CostLine(base).seconds(num_requests)
        drafting = [point for point in self._drafting.points(self._step) if point[0] > first[0]]
        single = num_requests + 1.0
        if len(drafting) == 1:
            # What it takes may be what any draft takes: more of them may be cheap.
            count, seconds = drafting[0]
            drafting.append((count + 1, seconds))
        elif drafting and drafting[0][0] > single:
            # One draft costs what any draft costs, and more: the line does not begin at the base.
            drafting.insert(0, (single, _go_back(drafting, single)))
        covered = {_bucket(count) for count, _ in (first, *drafting)}
        larger = [p for p in base if p[0] > first[0] and _bucket(p[0]) not in covered]
        return CostLine([first, *sorted((*drafting, *larger))])

    def pass_seconds(self, num_requests: float) -> float:
        """Of proposing one more token for each of so many requests."""
        return CostLine(self._passes.points(self._step)).seconds(num_requests)

    def vain_seconds(self, num_requests: int) -> float:
        """Of searching in vain, which a step of so many requests that has drafts has to bring in."""
        vain = max(0.0, self._vain) / (self._num_drafting + 1.0)
        return vain * self._base_line().seconds(num_requests)

    def _base_line(self) -> CostLine:
        return CostLine(self._base.points(self._step))
