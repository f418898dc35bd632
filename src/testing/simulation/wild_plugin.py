"""A plugin whose policies, wrappers and observer make every possible mistake, at random."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

from ...core import kinds
from ...core.contract.events import (
    Admitted,
    Finished,
    Planned,
    PluginFailed,
    Preempted,
    PrefixCacheChanged,
    Refused,
    StepDone,
    StoredBlock,
)
from ...core.contract.hookspecs import hookimpl
from ...core.contract.policy import StepView, Victim
from ...core.contract.registry import Registry

MAX_WRAPPER_LIMIT = 3


class PlantedError(Exception):
    """The exception that this plugin raises."""


class Chance:
    """A source of random exceptions. With `rate` 0 there are none."""

    def __init__(self, rng: random.Random, rate: float) -> None:
        self.rng = rng
        self.rate = rate

    def maybe_raise(self) -> None:
        """Raise PlantedError with the probability `rate`."""
        if self.rng.random() < self.rate:
            raise PlantedError


class WildPlugin:
    """Offers the policy "wild" of every kind, and wraps other plugins' decisions."""

    TOKENMILL_API = (1, 1)

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.num_swaps = 0
        self.num_failures = 0

    @hookimpl
    def register(self, registry: Registry) -> None:
        chance = self._chance
        registry.offer(kinds.SCHEDULER, "wild", lambda: _Scheduler(chance))
        registry.offer(kinds.PREEMPTION_MODE, "wild", lambda: _Preemption(chance))
        registry.offer(kinds.SCHEDULING_POLICY, "wild", lambda: _Order(chance))
        registry.offer(kinds.DRAFT_LENGTH, "wild", lambda: _DraftLength(chance))
        registry.offer(kinds.ADMISSION, "wild", lambda context: _Admission(chance))

    @hookimpl(wrapper=True)
    def schedule(self, step: StepView) -> Generator[None, None, None]:
        rng = self._chance.rng
        self._chance.maybe_raise()
        if rng.random() < 0.05:
            for request in (*step.running, *step.waiting):
                step.limit(request, rng.randint(1, MAX_WRAPPER_LIMIT))
        yield
        self._chance.maybe_raise()

    @hookimpl(wrapper=True)
    def preempt(self) -> Generator[None, Victim | None, Victim | None]:
        self._chance.maybe_raise()
        victim = yield
        self._chance.maybe_raise()
        return victim

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self.num_swaps += event.mode == "swap"

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self.num_failures += 1


class CacheObserver:
    """Knows the blocks in the prefix cache from the events alone, and counts images."""

    TOKENMILL_API = (1, 1)

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, int], StoredBlock] = {}
        """By hash and group."""
        self.num_item_queries = self.num_item_hits = 0

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.num_item_queries += event.mm_cache_queries
        self.num_item_hits += event.mm_cache_hits

    @hookimpl
    def on_prefix_cache_changed(self, event: PrefixCacheChanged) -> None:
        for change in event.changes:
            key = change.block_hash, change.group
            if isinstance(change, StoredBlock):
                assert key not in self.blocks, "a block is stored twice"
                self.blocks[key] = change
            else:
                del self.blocks[key]


class BadObserver:
    """Observes every event of a request or a step, and raises at random."""

    TOKENMILL_API = (1, 1)

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    @hookimpl
    def on_admitted(self, event: Admitted) -> None:
        self._chance.maybe_raise()

    @hookimpl
    def on_refused(self, event: Refused) -> None:
        self._chance.maybe_raise()

    @hookimpl
    def on_planned(self, event: Planned) -> None:
        self._chance.maybe_raise()

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self._chance.maybe_raise()

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self._chance.maybe_raise()

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        self._chance.maybe_raise()

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self._chance.maybe_raise()


class _Scheduler:
    """Schedules in random order, with odd amounts and repeats, uses old requests and steps, and
    waits without a reason."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._last_step: StepView | None = None

    @hookimpl
    def schedule(self, step: StepView) -> None:
        rng = self._chance.rng
        if rng.random() < 0.02:
            step.wait_until(step.now + rng.choice([-1.0, 0.001, 100.0]))
            return
        requests = [*step.running, *step.waiting]
        rng.shuffle(requests)
        for request in requests:
            self._chance.maybe_raise()
            if rng.random() < 0.2:
                step.limit(request, rng.randint(0, 3))
            step.schedule(request, rng.choice([None, None, 1, 3, 0, -1]))
            if rng.random() < 0.1:
                step.schedule(request)
        self._look_back(step)
        self._chance.maybe_raise()

    def _look_back(self, step: StepView) -> None:
        old, self._last_step = self._last_step, step
        if old is not None:
            for request in (*old.running, *old.waiting)[:2]:
                step.schedule(request)  # the request may have ended since
                assert old.schedule(request) == 0, "a completed step must not grant tokens"


class _Preemption:
    modes = ("recompute", "swap")

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    @hookimpl
    def preempt(self, step: Any, needy: Any, candidates: Any) -> Victim | None:
        self._chance.maybe_raise()
        if self._chance.rng.random() < 0.1:
            return None
        victim = self._chance.rng.choice(candidates)
        return Victim(request=victim.request, mode=self._chance.rng.choice(self.modes))


class _Order:
    uses_priority = True

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def key(self, request: Any, now: float) -> tuple[float, ...]:
        self._chance.maybe_raise()
        return (self._chance.rng.random(),)


class _DraftLength:
    """Chooses random lengths, at times one too long or one too many."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def choose(self, requests: Any, limits: Any) -> list[int]:
        self._chance.maybe_raise()
        is_wrong = self._chance.rng.random() < self._chance.rate
        longest = limits.num_speculative_tokens + is_wrong
        return [self._chance.rng.randint(0, longest) for _ in range(len(requests) + is_wrong)]

    def observe(self, step: Any) -> None:
        self._chance.maybe_raise()

    def forget(self, engine_id: str) -> None:
        self._chance.maybe_raise()


class _Admission:
    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    @hookimpl
    def admit(self, request: Any, load: Any) -> None:
        self._chance.maybe_raise()
