"""Steps that are computed in jumps: the outcome and all events are those of single steps."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.core.contract.events import Finished, Planned, PrefixCacheChanged, StepDone
from tokenmill.core.engine.steady import SteadyDecoding
from tokenmill.planning.fleet.outcome import FleetOutcome
from tokenmill.planning.fleet.settings import Autoscaler, Loss
from tokenmill.planning.step_time import StepTimeModel
from tokenmill.planning.virtual_engine import VirtualEngine

from ...core.plugin_packages import Packages
from ..planning import make_times
from .fleets import draw, serve

UNEVEN = StepTimeModel(
    tokens=((1, 0.0013), (8, 0.0041), (64, 0.31)),
    per_sampled_token=1.7e-4,
    per_context_token=3.1e-6,
    per_attended_pair=2.3e-8,
    overhead_per_step=0.0071,
)
"""No two steps take the same time. Steps with long prompts last longer than REPORT_SECONDS."""
ROUTERS = ("round-robin", "least-loaded", "prefix-aware", "session")


@pytest.fixture
def jumped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps that each jump has computed."""
    lengths: list[int] = []
    decode = SteadyDecoding.decode

    def note(self: SteadyDecoding, token_id: int, begin: float, ends: Any) -> None:
        lengths.append(len(ends))
        decode(self, token_id, begin, ends)

    monkeypatch.setattr(SteadyDecoding, "decode", note)
    return lengths


@pytest.fixture
def stepwise(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function with jumps disabled."""

    def call(function: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(VirtualEngine, "jump", lambda self, now: None)
            return function()

    return call


def random_run(seed: int) -> FleetOutcome:
    """A fleet with random requests, settings, losses, an update and an autoscaler."""
    rng = random.Random(seed)
    requests = draw(
        rng.choice([2.0, 6.0, 20.0]),
        8.0,
        seed=seed,
        output_len=rng.choice([8, 50]),
        prefix_len=rng.choice([0, 32, 80]),
        range_ratio=0.9,
    )
    options = {
        "scheduler": rng.choice(["chunked", "prefill-first"]),
        "num_gpu_blocks_override": rng.choice([24, 64, 200]),
        "max_num_seqs": rng.choice([2, 8, 64]),
        "max_num_batched_tokens": rng.choice([16, 64, 512]),
        "max_model_len": rng.choice([180, None]),
        "enable_prefix_caching": rng.random() < 0.8,
        "preemption_mode": rng.choice(["recompute", "swap"]),
        "max_num_queued_reqs": rng.choice([2, 100]),
    }
    rule = Autoscaler(target=rng.choice([1.5, 4.0]), highest=6, interval=1.0, patience=2.0)
    return serve(
        requests,
        router=rng.choice(ROUTERS),
        times=make_times(UNEVEN),
        options=options,
        num_replicas=(num_replicas := rng.choice([1, 2, 4])),
        start_seconds=0.5,
        losses=(Loss(at=rng.uniform(0, 8), first=0, last=min(1, num_replicas - 1)),)
        if rng.random() < 0.6
        else (),
        update_at=rng.uniform(0, 8) if rng.random() < 0.3 else None,
        autoscaler=rule if rng.random() < 0.3 else None,
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_run_with_jumps_has_the_outcome_of_a_run_without(
    seed: int, stepwise: Callable[[Callable[[], Any]], Any], jumped: list[int]
) -> None:
    slow = stepwise(lambda: random_run(seed))
    assert not jumped
    fast = random_run(seed)
    assert fast == slow
    assert jumped


def test_most_steps_of_long_answers_are_in_jumps(jumped: list[int]) -> None:
    outcome = serve(draw(1.0, 10.0, output_len=200), num_replicas=2)
    assert sum(jumped) > 0.8 * outcome.num_steps


def test_observers_get_the_events_of_each_step(
    packages: Packages, stepwise: Callable[[Callable[[], Any]], Any], jumped: list[int]
) -> None:
    packages.install(
        "recorder",
        """
        made = []  # a list of events for each engine

        class Recorder:
            def __init__(self, context):
                assert context.is_simulated
                made.append([])
                self.events = made[-1]
            @hookimpl
            def on_planned(self, event):
                self.events.append(event)
            @hookimpl
            def on_step(self, event):
                self.events.append(event)
            @hookimpl
            def on_prefix_cache_changed(self, event):
                self.events.append(event)
            @hookimpl
            def on_finished(self, event):
                self.events.append(event)

        @hookimpl
        def register(registry):
            registry.offer(kinds.OBSERVER, "recorder", Recorder)
        """,
    )
    packages.write_settings('[plugins]\nenable = ["recorder"]')

    def record() -> list[list[object]]:
        serve(draw(4.0, 5.0, output_len=40), num_replicas=2, times=make_times(UNEVEN))
        made: list[list[object]] = sys.modules["recorder"].made
        found = made.copy()
        made.clear()
        return found

    slow = stepwise(record)
    fast = record()
    assert [len(events) for events in fast] == [len(events) for events in slow]
    assert fast == slow
    kinds = {type(event) for events in fast for event in events}
    assert kinds == {Planned, StepDone, PrefixCacheChanged, Finished}
    assert jumped


@pytest.mark.parametrize("is_wrapper", [False, True])
def test_a_scheduler_without_decodes_all_is_called_for_each_step(
    packages: Packages, jumped: list[int], is_wrapper: bool
) -> None:
    packages.install("asked", _WRAPPER if is_wrapper else _SCHEDULER)
    options = {} if is_wrapper else {"scheduler": "asked"}
    if is_wrapper:
        packages.write_settings('[plugins]\nenable = ["asked"]')
    outcome = serve(draw(1.0, 5.0, output_len=40), num_replicas=1, options=options)
    assert not jumped
    assert sys.modules["asked"].calls == outcome.num_steps


_SCHEDULER = """
calls = 0

class Asked:
    @hookimpl
    def schedule(self, step):
        global calls
        calls += 1
        for request in (*step.running, *step.waiting):
            step.schedule(request)

@hookimpl
def register(registry):
    registry.offer(kinds.SCHEDULER, "asked", Asked)
"""
_WRAPPER = """
calls = 0

@hookimpl(wrapper=True)
def schedule(step):
    global calls
    calls += 1
    return (yield)
"""
