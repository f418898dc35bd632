"""The step log: what each step did, and why each request was not computed when it was not.

The engine reports every change to it. A reason is stored only when it changes, so a step costs
hardly more if many requests wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import islice, takewhile

from ...contract.activity import StepActivity
from ...contract.explanation import Explanation, Limit, Preemption
from ...contract.trace import Trace
from ...plan import StepResult
from ...regions import Regions
from ..blocks.pool import BlockPool
from ..committing import RequestUpdate
from ..planning import OpenPlan
from ..queues import RequestQueues
from ..request import Request, RequestStatus
from ..step import PendingPreemption, Step
from .explaining import explain
from .ledger import MAX_HOLDERS, NO_HOOKS, HookTimes, Ledger, Meters, QueueMeter
from .steps import LoggedStep, Ring

MAX_STEPS = 200
"""Maximum number of steps of one report."""
MAX_TRACED = 10_000
"""Maximum number of steps of a trace."""
PIECE = 200
"""Maximum number of closed steps, and of ended requests, in a piece of a trace."""
HOLDERS_STEPS = 32
"""Steps after which the log looks again for the requests that hold the most blocks."""


class StepLog:
    """The log of one engine. It reads queues and pool, and changes neither."""

    def __init__(
        self,
        max_bytes: int,
        queues: RequestQueues,
        pool: BlockPool,
        hook_times: HookTimes = NO_HOOKS,
    ) -> None:
        self.ring = Ring(max_bytes)
        self._queues, self._pool = queues, pool
        self._meters = Meters(hook_times, hook_times.read())
        self._queue = QueueMeter()
        self._live: dict[str, Ledger] = {}
        self._idle: dict[str, Ledger] = {}
        """The live requests that the last step does not compute."""
        self._refused: set[str] = set()
        """Waiting requests that do not wait behind another one."""
        self._siblings: dict[str, Request] = {}
        """Waiting choices that may wait until the prompt that they share is computed."""
        self._late: dict[str, Limit] = {}
        """Requests of open plans that the last step refused: they wait once the plan ends."""
        self._prompting: set[str] = set()
        """Started requests without a token."""
        self._redoing: set[str] = set()
        """Requests that have not recovered from a preemption."""
        self._open: dict[int, LoggedStep] = {}
        self.closed: LoggedStep | None = None
        """The last step whose result was applied."""
        self._last_ids: tuple[str, ...] = ()
        self._last_commit = 0.0
        self._holders: tuple[str, ...] = ()
        self._holders_step = -HOLDERS_STEPS
        self._num_taken = self._num_freed = 0

    # Requests

    def add(self, requests: Iterable[Request], now: float) -> None:
        """Note requests that were queued at `now`."""
        for request in requests:
            compiling = request.grammar_seconds
            ledger = Ledger(
                request=request,
                request_id=request.request_id,
                engine_id=request.engine_id,
                prompt_index=request.options.prompt_index,
                choice_index=request.choice_index,
                api_key_id=request.options.api_key_id,
                num_prompt_tokens=request.num_prompt_tokens,
                arrival=now - compiling,
                since=now,
                meters=self._meters,
                waiting={Limit.GRAMMAR: compiling} if compiling else {},
            )
            ledger.begin()
            self._live[request.engine_id] = self._idle[request.engine_id] = ledger
            self._refused.add(request.engine_id)
            if request.group is not None:
                self._siblings[request.engine_id] = request

    def end(self, engine_id: str, now: float) -> None:
        """Note that a request has ended."""
        ledger = self._live.pop(engine_id)
        ledger.end(now)
        self.ring.add_ended(ledger)
        for known in (self._idle, self._siblings, self._late):
            known.pop(engine_id, None)
        for ids in (self._refused, self._prompting, self._redoing):
            ids.discard(engine_id)

    # Steps

    def plan(self, step: Step, opened: OpenPlan, now: float) -> None:
        """Note a step that was decided and applied."""
        for preemption in step.preempted.values():
            self._lose(_describe(preemption, opened.plan.step_id), now)
        if self._idle:
            for engine_id in step.grants.keys() & self._idle.keys():
                self._compute(engine_id, now)
        if self._late:
            for engine_id in step.grants.keys() & self._late.keys():
                del self._late[engine_id]
        if len(self._queues.running) > len(step.grants):
            self._note_idle_running(step, now)
        if self._queues.waiting:
            self._note_waiting(step, now)
        self._open[opened.plan.step_id] = self._begin_record(step, opened)

    def wait(self, now: float) -> None:
        """Note that the scheduler chose to wait."""
        for request in self._queues.running:
            if not request.num_open_plans:
                self._stop(request.engine_id, Limit.WAIT_UNTIL, now)
        self._queue.set(Limit.WAIT_UNTIL, None, now)
        self._let_queue(self._refused, now)
        self._refused.clear()

    def commit(self, opened: OpenPlan, now: float, encoder_seconds: float = 0.0) -> None:
        """Note that a step was computed, before its result is applied."""
        grants, record = opened.plan.grants, self._open[opened.plan.step_id]
        seconds = max(0.0, now - max(opened.planned_at, self._last_commit))
        self._last_commit = record.committed_at = now
        encoder = min(encoder_seconds, seconds)
        if record.prompts:
            share = sum([count for _, count in record.prompts]) / record.num_tokens
            self._meters.prompts += encoder + (seconds - encoder) * share
        if self._prompting:
            shares = encoder_shares(opened) if encoder else {}
            for grant in grants:
                if grant.engine_id in self._prompting:
                    own, ledger = grant.num_tokens, self._live[grant.engine_id]
                    if not ledger.redo_until:
                        images = encoder * shares.get(grant.engine_id, 0.0)
                        others = record.num_tokens - own
                        ledger.count_prompt(own, others, seconds - encoder, images, encoder)

    def apply(
        self,
        opened: OpenPlan,
        result: StepResult | None,
        updates: Sequence[RequestUpdate],
        now: float,
    ) -> None:
        """Note that the result of a step was applied; None: the step raised."""
        if result is None:
            self._note_failure(opened.plan.step_id, now)
        for engine_id in [*self._redoing]:
            if engine_id not in self._idle:  # a swapped one has its tokens, but must come back
                self._recover(engine_id, now)
        for engine_id in [*self._prompting]:
            ledger = self._live[engine_id]
            if ledger.request and ledger.request.first_token_time is not None:
                ledger.begin_decode(now)
                self._prompting.discard(engine_id)
        if len(self._live) > len(self._queues.running) + len(self._queues.waiting):
            for update in updates:
                if update.finish_reason is not None:
                    self.end(update.engine_id, now)
        if self._late:
            self._stop_late(now)
        self._end_record(opened, result, now)

    def opened(self, step_id: int) -> LoggedStep:
        """The record of an open step."""
        return self._open[step_id]

    def time(self, step_id: int, plan_seconds: float, device_from: float, device_to: float) -> None:
        """Note the measured times of an open step."""
        record = self._open[step_id]
        record.plan_seconds = plan_seconds
        record.device_from, record.device_to = device_from, device_to
        self._meters.device += device_to - device_from

    def time_commit(self, step_id: int, seconds: float) -> None:
        """Note how long it took to commit the last step."""
        if self.closed is not None and self.closed.step_id == step_id:
            self.closed.commit_seconds = seconds

    # Reports

    def explain(self, request_id: str, now: float) -> tuple[Explanation, ...]:
        """Divide the latency of a live or recent request: one explanation per choice."""
        live = [one for one in self._live.values() if one.request_id == request_id]
        return tuple([explain(one, self.ring, now) for one in (*self.ring.find(request_id), *live)])

    def slowest(self, count: int, now: float) -> tuple[Explanation, ...]:
        """The recent and live requests with the longest latency, the longest first."""
        known = (*self.ring.ended, *self._live.values())
        found = nlargest(count, known, key=lambda one: (one.ended_at or now) - one.arrival)
        return tuple([explain(one, self.ring, now) for one in found])

    @property
    def last_step(self) -> int:
        """Number of the last step whose result was applied; -1 if there was none."""
        return -1 if self.closed is None else self.closed.step_id

    def activity(self, after_step: int) -> tuple[StepActivity, ...]:
        """The last steps after a step, the oldest first."""
        newer = takewhile(lambda step: step.step_id > after_step, self.ring.steps)
        found = [step.describe() for step in islice(newer, MAX_STEPS)]
        return tuple(reversed(found))

    def trace(self, since: float, now: float) -> Iterator[Trace]:
        """The steps and the requests since a time, as far as the log has them, in pieces.

        The log may change between two pieces: the first one notes what changes.
        """
        newer = takewhile(lambda step: step.committed_at >= since, self.ring.steps)
        closed = [*reversed([*islice(newer, MAX_TRACED)])]
        before = [None, *closed]
        ended = [one for one in self.ring.ended if (one.ended_at or now) >= since]
        times, last = self._meters.times, before[-1]
        opened = [step.trace(last, times) for step in self._open.values()]
        live = [one.trace(now) for one in self._live.values()]
        for first in range(0, max(len(closed), len(ended)), PIECE):
            end = first + PIECE
            pairs = zip(closed[first:end], before[first:end], strict=False)
            steps = tuple([step.trace(earlier, times) for step, earlier in pairs])
            requests = tuple([one.trace(now) for one in ended[first:end]])
            yield Trace(since=since, until=now, steps=steps, requests=requests)
        yield Trace(since=since, until=now, steps=tuple(opened), requests=tuple(live))

    def limit_of(self, engine_id: str) -> Limit | None:
        """The reason why a live request waits; None while it is computed."""
        ledger = self._live[engine_id]
        return ledger.limit if ledger.queue is None else self._queue.limit

    # Inside

    def _compute(self, engine_id: str, now: float) -> None:
        ledger = self._idle.pop(engine_id)
        ledger.compute(now)
        if engine_id in self._redoing and ledger.preemptions[-1].mode == "swap":
            self._recover(engine_id, now)  # its tokens come back before the step
        self._refused.discard(engine_id)
        self._siblings.pop(engine_id, None)
        if not ledger.has_token:
            self._prompting.add(engine_id)

    def _recover(self, engine_id: str, now: float) -> None:
        """End a preemption whose tokens are computed again."""
        ledger = self._live[engine_id]
        if ledger.request and ledger.request.num_computed_tokens >= ledger.redo_until:
            ledger.recover(now)
            self._redoing.discard(engine_id)

    def _stop(self, engine_id: str, limit: Limit, now: float) -> None:
        ledger = self._live[engine_id]
        if limit is not ledger.limit:
            ledger.wait(limit, now)
            if limit in (Limit.BLOCKS, Limit.WATERMARK):
                ledger.hold(self._find_holders())
        self._idle[engine_id] = ledger

    def _lose(self, preemption: tuple[str, Preemption], now: float) -> None:
        engine_id, what = preemption
        ledger = self._live[engine_id]
        ledger.lose(what, now)
        ledger.wait(Limit.BLOCKS, now)
        self._idle[engine_id] = ledger
        self._redoing.add(engine_id)
        self._late.pop(engine_id, None)
        if ledger.request and ledger.request.group is not None:
            self._siblings[engine_id] = ledger.request

    def _note_idle_running(self, step: Step, now: float) -> None:
        """The running requests without a grant wait, unless nothing of them is left to compute."""
        for request in self._queues.running:
            engine_id = request.engine_id
            if engine_id in step.grants or not request.num_uncomputed_tokens:
                continue
            limit = step.refusals.get(engine_id)
            if limit is None:
                if not step.is_candidate(request) and step.left_out is not Limit.ISOLATION:
                    continue  # an open plan of a stage computes it
                limit = step.left_out if step.left_out is Limit.ISOLATION else Limit.NOT_OFFERED
            if request.num_open_plans:
                self._late[engine_id] = limit
            else:
                self._stop(engine_id, limit, now)

    def _note_waiting(self, step: Step, now: float) -> None:
        waiting, refused, first = self._queues.waiting, set(step.preempted), None
        for engine_id, limit in step.refusals.items():
            if engine_id in waiting and engine_id not in step.preempted:
                first = first or (limit, waiting[engine_id].request_id)
                self._stop(engine_id, limit, now)
                refused.add(engine_id)
        limit, head = first or (step.left_out, None)
        self._queue.set(limit, head, now)
        if limit in (Limit.BLOCKS, Limit.WATERMARK):
            self._queue.holders = self._find_holders()
        self._let_queue(self._refused - refused, now)
        self._refused = refused
        for engine_id, request in self._siblings.items():
            assert request.group is not None
            if engine_id in refused:
                continue
            if request.group.must_wait(request):
                self._stop(engine_id, Limit.SIBLING, now)
            else:
                self._idle[engine_id].wait_behind(self._queue, now)

    def _let_queue(self, engine_ids: Iterable[str], now: float) -> None:
        for engine_id in engine_ids:
            if engine_id in self._queues.waiting:
                self._idle[engine_id].wait_behind(self._queue, now)

    def _note_failure(self, step_id: int, now: float) -> None:
        """The requests that were taken back wait again, and are computed again."""
        for engine_id, request in self._queues.waiting.items():
            if engine_id not in self._idle:
                what = Preemption(
                    step_id=step_id,
                    mode="failed step",
                    by=None,
                    priority=request.priority,
                    by_priority=request.priority,
                    num_tokens=request.num_tokens - 1,
                )
                self._lose((engine_id, what), now)
                self._refused.add(engine_id)

    def _stop_late(self, now: float) -> None:
        for engine_id, limit in [*self._late.items()]:
            request = self._live[engine_id].request
            if request is not None and not request.num_open_plans:
                del self._late[engine_id]
                if request.status is RequestStatus.RUNNING:
                    self._stop(engine_id, limit, now)

    def _find_holders(self) -> tuple[str, ...]:
        """The requests that hold the most blocks."""
        step_id = next(reversed(self._open), 0)
        if step_id - self._holders_step >= HOLDERS_STEPS or not self._holders:
            running = nlargest(MAX_HOLDERS, self._queues.running, key=lambda r: r.num_blocks)
            self._holders = tuple([request.request_id for request in running])
            self._holders_step = step_id
        return self._holders

    def _begin_record(self, step: Step, opened: OpenPlan) -> LoggedStep:
        plan, ids = opened.plan, tuple(step.grants)
        has_own_ids = ids != self._last_ids
        if has_own_ids:
            self._last_ids = ids
        record = LoggedStep(
            step_id=plan.step_id,
            planned_at=opened.planned_at,
            engine_ids=self._last_ids,
            has_own_ids=has_own_ids,
            num_tokens=len(ids),
            preempted=tuple(step.preempted),
            num_running=len(self._queues.running),
            num_waiting=len(self._queues.waiting),
        )
        if step.num_tokens != len(ids):
            record.num_tokens = plan.num_tokens
            known = [(g.engine_id, g.num_tokens - g.num_draft_tokens) for g in plan.grants]
            record.prompts = tuple([found for found in known if found[1] > 1])
            drafts = tuple([grant.num_draft_tokens for grant in plan.grants])
            record.num_drafts = drafts if any(drafts) else ()
        if opened.media is not None:
            record.num_encoded_tokens = opened.media.num_encoded_tokens
        if plan.starts:
            starts = [pending for pending in step.grants.values() if pending.is_start]
            record.num_cached = tuple([(p.request.engine_id, p.num_hit_tokens) for p in starts])
        return record

    def _end_record(self, opened: OpenPlan, result: StepResult | None, now: float) -> None:
        record, pool = self._open.pop(opened.plan.step_id), self._pool
        record.raised = result is None
        if record.num_drafts and result is not None:
            pairs = zip(record.num_drafts, result.token_ids, strict=True)
            record.num_accepted = tuple([len(ids) - 1 if n else 0 for n, ids in pairs])
        record.num_blocks_taken = pool.num_taken - self._num_taken
        record.num_blocks_freed = pool.num_freed - self._num_freed
        self._num_taken, self._num_freed = pool.num_taken, pool.num_freed
        record.encoder_seconds = 0.0 if result is None else result.encoder_seconds
        if result is not None and result.rank_times:
            begun, ended = record.planned_at, record.device_to or now
            record.ranks = tuple([_fit(one, begun, ended) for one in result.rank_times])
        if result is not None and result.regions:
            record.regions = _fit_regions(result, record.ranks)
        self._meters.read(now)
        record.by_hook = self._meters.by_hook
        self.closed = record
        self.ring.add_step(record)


def encoder_shares(opened: OpenPlan) -> dict[str, float]:
    """The share of each request in the work of the encoder in a step, by the tokens of its images.
    Requests with the same image share it."""
    assert opened.plan.media is not None, "nothing was encoded"
    encoded = set(opened.plan.media.encode)
    tokens: dict[str, int] = {}
    for grant, request in zip(opened.plan.grants, opened.requests, strict=True):
        end = grant.start + grant.num_tokens
        needed = (i for i in request.media if i.start < end and grant.start < i.end)
        own = {item.digest: item.num_tokens for item in needed}
        tokens[grant.engine_id] = sum([own[digest] for digest in own.keys() & encoded])
    total = sum(tokens.values())
    return {engine_id: count / total for engine_id, count in tokens.items() if count}


def _describe(pending: PendingPreemption, step_id: int) -> tuple[str, Preemption]:
    return pending.request.engine_id, Preemption(
        step_id=step_id,
        mode=pending.mode,
        by=pending.needy.request_id,
        priority=pending.request.priority,
        by_priority=pending.needy.priority,
        num_tokens=pending.num_computed_tokens,
    )


def _fit(times: tuple[float, float], first: float, last: float) -> tuple[float, float]:
    """Times of a worker on this machine's clock. If its machine has another clock, which they show
    by lying outside of the step, they are moved to the end of the step."""
    begun, ended = times
    return times if first <= begun and ended <= last else (last - (ended - begun), last)


def _fit_regions(result: StepResult, ranks: Sequence[tuple[float, float]]) -> tuple[Regions, ...]:
    """The regions of a result, moved as `_fit` has moved the times of their ranks."""
    if not ranks:
        return result.regions
    trios = zip(result.regions, result.rank_times, ranks, strict=False)
    moves = [(one, after[0] - before[0]) for one, before, after in trios]
    return tuple([replace(one, began=one.began + move) if move else one for one, move in moves])
