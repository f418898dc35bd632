"""The autoscaler's arithmetic."""

from __future__ import annotations

import math
from collections import deque

from .settings import Autoscaler


class Recommendations:
    """Remembers what the rule said lately, because replicas are removed only when it has agreed for
    a while."""

    def __init__(self, rule: Autoscaler) -> None:
        self._rule = rule
        self._recent: deque[tuple[float, int]] = deque()

    def decide(self, now: float, current: int, per_replica: float) -> int:
        """The number of replicas to have. `per_replica`: the metric, averaged over the current
        ones."""
        rule = self._rule
        ratio = per_replica / rule.target
        raw = current if abs(ratio - 1) <= rule.tolerance else math.ceil(current * ratio)
        wanted = min(max(raw, rule.lowest), rule.highest)
        self._recent.append((now, wanted))
        while self._recent[0][0] < now - rule.patience:
            self._recent.popleft()
        if wanted >= current:
            return wanted
        return min(current, max(number for _, number in self._recent))
