"""The states of a runner's requests, and the requests that it lost in steps that raised."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.plan import Grant, RequestStart, StepPlan
from ..grammar.base import Matcher
from ..state.kv_cache import KVCache
from ..state.request_state import RequestState


class RequestStates:
    """Follows plans."""

    def __init__(
        self,
        vocab_size: int,
        kv_cache: KVCache,
        make_matcher: Callable[[RequestStart], Matcher | None] = lambda start: None,
    ) -> None:
        self.by_id: dict[str, RequestState] = {}
        """By `engine_id`."""
        self._lost: set[str] = set()
        """Requests of a step that raised, until a plan reports their end."""
        self._vocab_size = vocab_size
        self._kv_cache = kv_cache
        self._make_matcher = make_matcher

    def forget(self, plan: StepPlan) -> None:
        """Drop the state of requests that ended. A start replaces the state with the same id."""
        for engine_id in plan.ended:
            self.by_id.pop(engine_id, None)
            self._lost.discard(engine_id)
        for start in plan.starts:
            self._lost.discard(start.engine_id)

    def lose(self, grants: Sequence[Grant]) -> None:
        """Drop the requests of a step that raised."""
        for grant in grants:
            self.by_id.pop(grant.engine_id, None)
            self._lost.add(grant.engine_id)

    def rows(self, plan: StepPlan) -> Sequence[int]:
        """Indices of the grants whose requests are not lost."""
        return [i for i, grant in enumerate(plan.grants) if grant.engine_id not in self._lost]

    def take_in(self, plan: StepPlan, rows: Sequence[int]) -> list[RequestState]:
        """Advance the states of the granted requests; returns them in the order of `rows`."""
        # This happens before anything can fail on the device.
        grants = [plan.grants[row] for row in rows]
        begin = {grant.engine_id: grant.start for grant in grants}
        assert len(begin) == len(grants), "a plan grants each request once"
        for start in plan.starts:
            assert start.engine_id in begin, "a plan grants what it starts"
            self.by_id[start.engine_id] = RequestState(
                start,
                begin[start.engine_id],
                self._vocab_size,
                self._make_matcher(start),
                num_groups=len(self._kv_cache.groups.windows),
            )
        assert begin.keys() <= self.by_id.keys(), "a plan grants requests that were started"
        states = [self.by_id[engine_id] for engine_id in begin]
        cache = self._kv_cache
        for grant, state in zip(grants, states, strict=True):
            state.advance(grant, cache.block_size, cache.num_blocks)
        return states
