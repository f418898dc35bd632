"""The spans of a trace say the same as the explanations of its requests."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.core.engines import Bench
from tokenmill.api.tracing.chrome import DEVICE, WORKERS, chrome_trace
from tokenmill.api.tracing.spans import Phase, Span, spans_of
from tokenmill.core.contract.explanation import Explanation
from tokenmill.core.contract.trace import Trace, join_pieces
from tokenmill.core.engine.request import Request
from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.core.requests.sampling_params import SamplingParams


class Clock(Bench):
    """A starved engine, whose steps take as long as their caller says."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"num_blocks": 8, "step_log_size": 1 << 24} | settings)
        self.names: list[str] = []

    def ask(self, num_tokens: int, max_tokens: int, priority: int = 0, name: str = "") -> None:
        first = 50 * len(self.names)
        self.names.append(name or f"r{len(self.names)}")
        self.reasons.pop(name, None)
        request = Request(
            request_id=self.names[-1],
            prompt_token_ids=tuple(range(first, first + num_tokens)),
            sampling_params=SamplingParams(),
            max_tokens=max_tokens,
            arrival_time=self.now,
            seed=1,
            options=RequestOptions(priority=priority),
        )
        self.queue([request])

    def take(self, seconds: float) -> None:
        """Plan a step now, and commit it `seconds` later."""
        self.plan()
        self.now += seconds
        if self.open:
            self.commit()

    def trace(self, seconds: float = 1e9) -> Trace:
        assert self.core.log is not None
        return join_pieces([*self.core.log.trace(self.now - seconds, self.now)])

    def why(self, name: str) -> Explanation:
        assert self.core.log is not None
        [found] = self.core.log.explain(name, self.now)
        return found


def by_name(trace: Trace) -> dict[str, list[Span]]:
    """The spans of requests that each have an id of their own."""
    names = [one.engine_id for one in trace.requests]
    assert len({*names}) == len(names)
    return dict(zip(names, spans_of(trace), strict=True))


def lengths(trace: Trace, name: str) -> dict[str, float]:
    """Seconds of a request in each phase. Its spans follow each other."""
    spans = by_name(trace)[name]
    assert all(a.end == b.start and a.phase is not b.phase for a, b in pairwise(spans))
    found = dict.fromkeys(Phase, 0.0)
    for span in spans:
        found[span.phase] += span.end - span.start
    return {str(phase): seconds for phase, seconds in found.items()}


def parts(found: Explanation) -> dict[str, float]:
    return {
        "waiting": sum(found.waiting.values()),
        "prompt": found.prompt_images + found.prompt_alone + found.prompt_others,
        "preempted": found.preempted,
        "decode": found.decode_alone + found.decode_others,
    }


def starved(seed: int, mode: str, *, most_stages: int = 2) -> Clock:
    """An engine whose requests take each other's blocks, after a while."""
    rng = random.Random(seed)
    max_inflight, num_stages = rng.choice([(1, 1), (2, 1), (1, most_stages)])
    bench = Clock(
        max_num_batched_tokens=rng.choice([8, 16, 64]),
        max_num_seqs=rng.choice([3, 8]),
        num_host_blocks=12,
        preemption_mode=mode,
        scheduling_policy="priority",
        max_inflight=max_inflight,
        num_stages=num_stages,
        # With two open steps, the commit of one may end a recovery from the prefix cache.
        enable_prefix_caching=max_inflight == num_stages,
    )
    for _ in range(60):
        if rng.random() < 0.4:
            bench.ask(rng.randint(1, 12), rng.randint(4, 16), priority=rng.randint(0, 2))
        if rng.random() < 0.5:
            bench.plan()
        bench.take(rng.choice([0.5, 1.0, 2.0]))
    return bench


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("seed", range(20))
def test_the_spans_of_a_request_add_up_to_its_explanation(seed: int, mode: str) -> None:
    bench = starved(seed, mode)
    trace = bench.trace()
    assert any(one.preemptions for one in trace.requests), "the engine is starved"
    for name in bench.names:
        found, expected = lengths(trace, name), parts(bench.why(name))
        assert found == pytest.approx(expected, abs=1e-6), name


def clipped(trace: Trace, since: float) -> dict[str, dict[str, float]]:
    """Seconds of each request in each phase from a time on."""
    found = {}
    for name, spans in by_name(trace).items():
        found[name] = dict.fromkeys(Phase, 0.0)
        for span in spans:
            found[name][span.phase] += max(0.0, span.end - max(span.start, since))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_short_trace_is_the_end_of_a_long_one(seed: int) -> None:
    bench = starved(seed, "recompute", most_stages=1)
    since = bench.now - 10.25
    short, long = bench.trace(10.25), bench.trace()
    assert 0 < len(short.steps) < len(long.steps)
    assert {one.engine_id for one in short.requests} == {
        one.engine_id for one in long.requests if (one.ended_at or bench.now) >= since
    }
    first, whole = short.steps[0].step_id, clipped(long, since)
    for request in short.requests:
        found, expected = clipped(short, since)[request.engine_id], whole[request.engine_id]
        if any(one.step_id < first for one in request.preemptions):
            for part in (found, expected):  # how far it had recovered is not known
                part[Phase.DECODE] += part.pop(Phase.PREEMPTED) + part.pop(Phase.PROMPT)
        assert found == pytest.approx(expected, abs=1e-6), request


def test_a_raised_step_takes_the_blocks_of_its_requests() -> None:
    bench = Clock()
    bench.ask(4, 3)
    bench.ask(5, 3)
    bench.plan()
    bench.now += 2.0
    bench.fail()
    for _ in range(4):
        bench.take(1.0)
    trace = bench.trace()
    assert [step.raised for step in trace.steps] == [True, *[False] * 4]
    for name in bench.names:
        found = lengths(trace, name)
        assert found == pytest.approx(parts(bench.why(name))) and found["preempted"] >= 1.0
        assert [span.phase for span in by_name(trace)[name]][:2] == [Phase.PROMPT, Phase.PREEMPTED]


def test_requests_that_reuse_an_id_have_the_steps_of_their_own() -> None:
    bench = Clock()
    bench.ask(4, 2, name="again")
    bench.take(1.0)
    bench.plan()
    bench.now += 0.5
    bench.core.abort("again", bench.now)  # while a step computes it
    bench.now += 0.5
    bench.commit()
    bench.ask(6, 3, name="again")
    for _ in range(3):
        bench.take(2.0)
    trace = bench.trace()
    first, second = (
        [(span.phase, span.start, span.end, span.num_steps) for span in spans]
        for spans in spans_of(trace)
    )
    assert first == [(Phase.PROMPT, 0.0, 1.0, 1), (Phase.DECODE, 1.0, 1.5, 1)]
    assert second == [
        (Phase.PROMPT, 2.0, 4.0, 1),
        (Phase.DECODE, 4.0, 8.0, 2),
    ]
    events = json.loads(chrome_trace([trace], {}))["traceEvents"]
    tracks = [e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == 2]
    drawn = [(e["tid"], e["name"]) for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert drawn == [
        *((tracks[0], phase) for phase in ("prompt", "decode")),
        *((tracks[1], phase) for phase in ("prompt", "decode")),
    ]


def slices(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Beginnings and ends of the slices of each track, in the order of their beginnings."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            times = (event["ts"], event["ts"] + event["dur"])
            found.setdefault((event["pid"], event["tid"]), []).append(times)
    return {track: sorted(times) for track, times in found.items()}


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_slices_of_a_track_never_overlap(seed: int, measured: bool) -> None:
    """Several steps are open at a time. If they are measured, the device computes them one after
    another; a step that raises, and an open one, have no measurement."""
    rng = random.Random(seed)
    bench = Clock(
        num_blocks=24,
        max_inflight=rng.choice([1, 2]),
        num_stages=rng.choice([1, 3]),
        max_num_seqs=3,
        enable_prefix_caching=False,
    )
    device = 0.0
    for _ in range(60):
        if rng.random() < 0.5:
            bench.ask(rng.randint(1, 12), rng.randint(2, 9))
        for _ in range(rng.randint(1, 3)):
            bench.plan()
            bench.now += rng.choice([0.1, 0.3])
        if bench.open and rng.random() < 0.8:
            if rng.random() < 0.1:
                bench.fail()
                continue
            if measured and bench.core.log is not None:
                step_id = bench.open[0].step_id
                begun = max(device, bench.core.log.opened(step_id).planned_at)
                device = begun + rng.uniform(0.0, 0.5)
                bench.now = max(bench.now, device)
                bench.core.log.time(step_id, 0.05, begun, device)
            # A worker on a machine whose clock is behind, and whose results come in bunches.
            bench.commit(lambda plan, result: replace(result, rank_times=((-9.0, -8.5),)))
    while len(bench.open) < 2 and bench.plan():
        bench.now += 0.1
    trace = bench.trace()
    assert not trace.steps[-1].committed_at
    tracks = slices(json.loads(chrome_trace([trace], {}))["traceEvents"])
    assert len(tracks[1, DEVICE]) == len(trace.steps) and tracks[1, WORKERS]
    for track, times in tracks.items():
        assert all(a[1] <= b[0] for a, b in pairwise(times)), track


def test_every_event_lies_within_the_trace_and_on_a_named_track() -> None:
    bench = starved(3, "recompute")
    bench.plan()  # a step that is not finished
    bench.now += 1.0
    trace = bench.trace(20.0)
    found = json.loads(chrome_trace([trace], {"model": "toy"}))
    facts = {"model": "toy", "steps": len(trace.steps), "requests": len(trace.requests)}
    assert found["otherData"] == facts
    events = found["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        if event["ph"] != "M":
            assert (event["pid"], event["tid"]) in named
            assert 0 <= event["ts"] <= event["ts"] + event.get("dur", 0) <= 20e6
    steps = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert len(steps) == len(trace.steps), "nobody measured the times of plans and commits"
    assert steps[-1]["name"] == "not finished" and steps[-1]["dur"] == 1e6
    assert sum(e["ph"] == "i" for e in events) == sum(len(s.preempted) for s in trace.steps)
