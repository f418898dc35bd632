"""Traces of engines in Chrome's trace-event format, which Perfetto and chrome://tracing open.

Times are in microseconds since the beginning of the trace. Each engine has a process of tracks for
its steps, and one for its requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...core.contract.trace import Trace, TracedRequest, TracedStep
from ...core.regions import Regions
from .spans import Phase, Span, spans_of

PLAN, DEVICE, COMMIT, WORKERS = range(1, 5)
"""Numbers of the tracks of steps. Each worker has a track, from WORKERS on."""
STEP_TRACKS = {PLAN: "plan", DEVICE: "device", COMMIT: "commit"}
Event = dict[str, Any]


def chrome_trace(traces: Sequence[Trace], facts: dict[str, str]) -> bytes:
    """The JSON of all engines. `facts`: texts about the server."""
    start = min((one.since for one in traces), default=0.0)
    events = [event for one in traces for event in _Tracks(one, start).events()]
    counts = {
        "steps": sum(len(one.steps) for one in traces),
        "requests": sum(len(one.requests) for one in traces),
    }
    return msgspec.json.encode(
        {"displayTimeUnit": "ms", "otherData": {**facts, **counts}, "traceEvents": events}
    )


class _Tracks:
    """The tracks of one engine."""

    def __init__(self, trace: Trace, start: float) -> None:
        self._trace, self._start = trace, start
        self._steps, self._requests = 2 * trace.engine + 1, 2 * trace.engine + 2
        """Numbers of the two processes."""
        self._free: dict[int, float] = {}
        """When the last slice of each track of steps ends: slices of a track never overlap."""

    def events(self) -> Iterator[Event]:
        name = f"engine {self._trace.engine}"
        yield self._name(self._steps, f"{name}: steps")
        yield self._name(self._requests, f"{name}: requests")
        for track, title in STEP_TRACKS.items():
            yield self._name(self._steps, title, track)
        for rank in range(max((len(step.ranks) for step in self._trace.steps), default=0)):
            yield self._name(self._steps, f"worker {rank}", WORKERS + rank)
        for step, limit in zip(self._trace.steps, self._limits(), strict=True):
            yield from self._step(step, limit)
        pairs = zip(self._trace.requests, spans_of(self._trace), strict=True)
        by_arrival = sorted(pairs, key=lambda pair: pair[0].arrival)
        for track, (request, spans) in enumerate(by_arrival, 1):
            yield self._name(self._requests, request.engine_id, track)
            for span in spans:
                yield self._request(request, span, track)

    # Steps

    def _limits(self) -> list[float]:
        """Per step, the time at which the device began the next step that was measured."""
        found, limit = list[float](), self._trace.until
        for step in reversed(self._trace.steps):
            found.append(limit)
            limit = step.device_from or limit
        return found[::-1]

    def _step(self, step: TracedStep, limit: float) -> Iterator[Event]:
        args = _describe(step)
        if step.plan_seconds:
            planned = step.planned_at + step.plan_seconds
            yield self._slice(PLAN, "plan", step.planned_at, planned, {"step": step.step_id})
        # Without a measurement: from the plan to the end, while the device computes no other step.
        begun = step.device_from or step.planned_at
        ended = step.device_to or step.committed_at or self._trace.until
        whole = self._slice(DEVICE, _kind(step), begun, min(ended, limit), args)
        yield whole
        parts = [
            self._slice(WORKERS + rank, _kind(step), begun, ended, {"step": step.step_id})
            for rank, (begun, ended) in enumerate(step.ranks)
        ]
        yield from parts
        for part, regions in zip(parts or [whole], step.regions, strict=False):
            yield from self._within(part, regions)
        for victim in step.preempted:
            yield self._event(
                "i", f"{victim} loses its blocks", step.planned_at, self._steps, PLAN, s="t"
            )
        if not step.committed_at:
            return
        if step.commit_seconds:
            done = step.committed_at + step.commit_seconds
            yield self._slice(COMMIT, "commit", step.committed_at, done, {"step": step.step_id})
        tokens = {name: args[name] for name in ("prompt", "decode", "draft")}
        queue = {"running": step.num_running, "waiting": step.num_waiting}
        yield self._counter("tokens per step", step, tokens)
        yield self._counter("requests", step, queue)
        if step.hooks:
            hooks = {name: round(1e3 * seconds, 3) for name, seconds in step.hooks}
            yield self._counter("hooks of plugins, ms per step", step, hooks)

    def _slice(self, track: int, name: str, start: float, end: float, args: Event) -> Event:
        start = max(start, self._free.get(track, start))
        end = self._free[track] = max(start, end)
        length = self._microseconds(end) - self._microseconds(start)
        return self._event("X", name, start, self._steps, track, dur=length, args=args)

    def _within(self, part: Event, regions: Regions) -> Iterator[Event]:
        """The regions of a slice, as slices within it. They are cut at its ends, because viewers
        show slices that overlap only in part on another track."""
        end = part["ts"]
        last = end + part["dur"]
        for one in regions:
            start = min(max(end, self._microseconds(one.began)), last)
            end = min(max(start, self._microseconds(one.ended)), last)
            event = {**part, "name": one.name, "ts": start, "dur": end - start}
            event["args"] = {} if one.layer is None else {"layer": one.layer}
            yield event

    def _counter(self, name: str, step: TracedStep, values: Event) -> Event:
        return self._event("C", name, step.committed_at, self._steps, DEVICE, args=values)

    # Requests

    def _request(self, request: TracedRequest, span: Span, track: int) -> Event:
        args: Event = {"prompt": request.num_prompt_tokens, "key": request.api_key_id}
        if span.phase is Phase.WAITING:
            args["seconds of all waiting"] = {str(k): v for k, v in request.waiting.items()}
        elif span.phase is Phase.PROMPT:
            args |= {"steps": span.num_steps, "cached": request.num_cached_tokens}
        elif span.phase is Phase.PREEMPTED:
            args["by"] = [one.by for one in request.preemptions]
        else:
            args |= {"steps": span.num_steps, "generated": request.num_generated_tokens}
        if request.finish_reason is not None:
            args["finish_reason"] = request.finish_reason
        length = self._microseconds(span.end) - self._microseconds(span.start)
        return self._event(
            "X", span.phase, span.start, self._requests, track, dur=max(0, length), args=args
        )

    # Events

    def _event(
        self, kind: str, name: str, time: float, process: int, track: int, **more: Any
    ) -> Event:
        at = self._microseconds(time)
        return {"ph": kind, "name": name, "ts": at, "pid": process, "tid": track, **more}

    def _name(self, process: int, name: str, track: int | None = None) -> Event:
        what = "process_name" if track is None else "thread_name"
        return {
            "ph": "M", "name": what, "pid": process, "tid": track or 0, "args": {"name": name},
        }  # fmt: skip

    def _microseconds(self, time: float) -> int:
        return round(1e6 * (max(time, self._trace.since) - self._start))


def _describe(step: TracedStep) -> Event:
    num_prompt = sum(count for _, count in step.prompts)
    found: Event = {
        "step": step.step_id,
        "prompt": num_prompt,
        "decode": step.num_tokens - num_prompt - step.num_draft_tokens,
        "draft": step.num_draft_tokens,
        "accepted": step.num_accepted_tokens,
        "cached": sum(count for _, count in step.num_cached),
    }
    if step.num_encoded_tokens:
        found["encoded"], found["encoder seconds"] = step.num_encoded_tokens, step.encoder_seconds
    if step.prompts:
        found["prompts of"] = [engine_id for engine_id, _ in step.prompts]
    return found


def _kind(step: TracedStep) -> str:
    """The name of a step, by which viewers choose its color."""
    if step.raised:
        return "raised"
    if not step.committed_at:
        return "not finished"
    num_prompt = sum(count for _, count in step.prompts)
    if not num_prompt:
        return "decode"
    has_decode = step.num_tokens > num_prompt + step.num_draft_tokens
    return "prompt and decode" if has_decode else "prompt"
