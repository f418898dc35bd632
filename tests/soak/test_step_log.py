"""The step log keeps its size over more steps than an engine computes in a day."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count

import psutil

from tests.core.engines import Bench
from tokenmill.core.config import EngineConfig
from tokenmill.core.engine.request import Request
from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.core.requests.sampling_params import SamplingParams

NUM_STEPS = int(os.environ.get("TOKENMILL_SOAK_STEPS", "2000000"))
"""Of 30 ms each: 16 hours. TOKENMILL_SOAK_STEPS changes it."""
STEP_SECONDS = 0.03
NUM_REQUESTS = 1
"""That are live at a time. Each has 1 to 20 tokens."""
MAX_GROWTH = 2.0
"""MB of RSS after the log is full: a byte per step."""


def resident() -> float:
    """MB."""
    return float(psutil.Process().memory_info().rss) / 1e6


class Life:
    """An engine whose requests come and go, in simulated time."""

    def __init__(self, step_log_size: int) -> None:
        bench = Bench(num_blocks=256, step_log_size=step_log_size)
        self._core, self._executor = bench.core, bench.executor
        self._numbers = count()
        self._now = 0.0
        self._num_live = 0

    def take(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._now += STEP_SECONDS
            while self._num_live < NUM_REQUESTS:
                self._ask(next(self._numbers))
            plan = self._core.plan(self._now)
            assert plan is not None
            result = self._executor.launch(plan).result()
            for update in self._core.commit(plan, result, self._now):
                self._num_live -= update.finish_reason is not None

    def _ask(self, number: int) -> None:
        request = Request(
            request_id=f"cmpl-{number}",
            prompt_token_ids=tuple(range(number % 97, number % 97 + 20)),
            sampling_params=SamplingParams(),
            max_tokens=1 + number % 20,
            arrival_time=self._now,
            seed=number,
            options=RequestOptions(),
        )
        self._core.add([request], self._now)
        self._num_live += 1

    def is_full(self) -> bool:
        """Whether the log has dropped the first request."""
        log = self._core.log
        return log is not None and not log.explain("cmpl-0", self._now)


def test_memory_does_not_grow_once_the_log_is_full(
    record_property: Callable[[str, object], None],
) -> None:
    size = EngineConfig().step_log_size
    life = Life(size)
    life.take(1000)
    before = resident()
    while not life.is_full():
        life.take(10_000)
    life.take(10_000)
    full = resident()
    life.take(NUM_STEPS)
    grown = resident() - full
    assert life.is_full()
    record_property("steps", NUM_STEPS)
    record_property("MB of a full log", round(full - before, 1))
    record_property("MB more after the other steps", round(grown, 2))
    assert full - before < 1.2 * size / 1e6
    assert grown < MAX_GROWTH
