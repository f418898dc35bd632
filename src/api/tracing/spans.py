"""The time of each traced request as spans, found from the steps that computed it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter

from ...core.contract.explanation import Preemption
from ...core.contract.trace import Trace, TracedRequest, TracedStep


class Phase(StrEnum):
    """The parts of the time of a request, as `tokenmill why` names them."""

    WAITING = "waiting"
    PROMPT = "prompt"
    DECODE = "decode"
    PREEMPTED = "preempted"


@dataclass(slots=True, eq=False)
class Span:
    """A time in which the phase of a request does not change."""

    phase: Phase
    start: float
    end: float
    num_steps: int = 0
    """Steps that computed it."""


def spans_of(trace: Trace) -> list[list[Span]]:
    """The spans of each request of the trace, in the order of the requests, the oldest first."""
    planned = [step.planned_at for step in trace.steps]
    histories = [_History(one, trace, planned) for one in trace.requests]
    by_id: dict[str, list[_History]] = defaultdict(list)
    lost: dict[int, list[tuple[_History, Preemption]]] = defaultdict(list)
    for history in sorted(histories, key=attrgetter("ended_at")):
        by_id[history.request.engine_id].append(history)
        for one in history.request.preemptions:
            lost[one.step_id].append((history, one))
    ids: tuple[str, ...] = ()
    for index, step in enumerate(trace.steps):
        ids = ids if step.engine_ids is None else step.engine_ids
        if not step.raised:
            _lose(lost[step.step_id], step.planned_at, index)
        counts, hits = dict(step.prompts), dict(step.num_cached)
        for engine_id in ids:
            if (found := _owner(by_id.get(engine_id, ()), step.planned_at)) is not None:
                num_tokens = counts.get(engine_id, 1) + hits.get(engine_id, 0)
                found.compute(index, step, num_tokens)
        if step.raised:
            _lose(lost[step.step_id], step.committed_at, index)
    for history in histories:
        history.finish()
    return [history.spans for history in histories]


def _owner(known: Sequence[_History], planned_at: float) -> _History | None:
    """The request that a step computed, of the requests with its id, in the order of their ends.
    A client may use an id again once the request with it has ended."""
    found = next((one for one in known if planned_at < one.ended_at), known[-1] if known else None)
    return found if found is not None and found.request.arrival <= planned_at else None


def _lose(lost: Sequence[tuple[_History, Preemption]], now: float, index: int) -> None:
    for history, preemption in lost:
        history.leave_out(now, index)
        history.lose(preemption)


@dataclass(slots=True, eq=False)
class _History:
    """The spans of one request up to `at`."""

    request: TracedRequest
    trace: Trace
    planned: Sequence[float]
    """When each step was planned."""
    spans: list[Span] = field(default_factory=list)
    at: float = 0.0
    ended_at: float = 0.0
    """The end of the trace if it is live then."""
    index: int = -1
    """The index of the last step that computed it; -1: none yet."""
    num_lost: int | None = None
    """Tokens that are to be computed again after a preemption; None: it is not preempted."""
    num_lost_first: int = 0
    """The same at the time of the preemption."""

    def __post_init__(self) -> None:
        self.at = max(self.request.arrival, self.trace.since)
        ended = self.request.ended_at
        self.ended_at = self.trace.until if ended is None else ended
        first = self.trace.steps[0].step_id if self.trace.steps else 0
        earlier = [one for one in self.request.preemptions if one.step_id < first]
        if earlier and self.request.engine_id not in (self.trace.steps[0].engine_ids or ()):
            self.lose(earlier[-1])

    def compute(self, index: int, step: TracedStep, num_tokens: int) -> None:
        """Note that a step computes tokens of the request."""
        end = min(step.committed_at or self.trace.until, self.ended_at)
        self.leave_out(step.planned_at, index)
        self._add(self._phase_in(end), end)
        self.spans[-1].num_steps += 1
        self.index = index
        left = (self.num_lost or 0) - num_tokens
        self.num_lost = left if left > 0 else None

    def lose(self, preemption: Preemption) -> None:
        """It loses its blocks. If that happens again before it has recovered, it must still recover
        from the first time."""
        num_tokens = 0 if preemption.mode == "swap" else preemption.num_tokens
        self.num_lost_first = (
            num_tokens if self.num_lost is None else max(self.num_lost_first, num_tokens)
        )
        self.num_lost = self.num_lost_first

    def finish(self) -> None:
        """Add the time after its last step."""
        self.leave_out(self.ended_at, len(self.planned))

    def leave_out(self, end: float, index: int) -> None:
        """No step computes it until `end`, when the step at `index` is planned."""
        if end <= self.at:
            return
        if self.num_lost is not None:
            self._add(Phase.PREEMPTED, end)
        elif self.index < 0:
            self._add(Phase.WAITING, end)
        else:
            first = bisect_left(self.planned, self.at, self.index + 1, max(index, self.index + 1))
            left_out_at = min(self.planned[first], end) if first < index else end
            if left_out_at > self.at:
                self._add(self._phase_in(left_out_at), left_out_at)  # between two steps
            if left_out_at < end:
                self._add(Phase.WAITING, end)

    def _phase_in(self, end: float) -> Phase:
        if self.num_lost:
            return Phase.PREEMPTED
        first = self.request.first_token_at
        return Phase.PROMPT if first is None or end <= first else Phase.DECODE

    def _add(self, phase: Phase, end: float) -> None:
        end = max(end, self.at)
        if self.spans and self.spans[-1].phase is phase:
            self.spans[-1].end = end
        else:
            self.spans.append(Span(phase, self.at, end))
        self.at = end
