"""The engine as a synchronous state machine: `add`, `abort`, `plan`, `commit`.

It has no threads, no `await` and no tensors. Clock and executor stay outside, so that a simulator
can drive it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.client import Load
from ..contract.events import Admitted, Finished, Planned, Preempted, StepDone
from ..contract.fallback import decode_first, last_come
from ..contract.policy import PreemptionCandidate, RequestView, StepView, Victim
from ..contract.speculation import SpeculationLimits
from ..errors import InvalidRequestError, OverloadedError, RateLimitedError
from ..host.plugin_host import PluginHost
from ..outputs import FinishReason
from ..plan import Grant, RequestStart, StepPlan, StepResult, TokenLogprobs
from .accepting import accept, give_back, publish
from .blocks import BlockPool
from .draft_planning import DraftPlanner
from .queues import RequestQueues
from .request import Request, RequestStatus
from .statistics import StepTally, describe_admitted, describe_finished
from .step import PendingGrant, PendingPreemption, PreemptHook, Step, StepLimits

STARVATION_STEPS = 1000
"""Number of steps without a token after which the most senior request is served first, whatever
the policy decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUpdate:
    """The changes to one request since its previous update."""

    engine_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True, eq=False)
class _OpenPlan:
    plan: StepPlan
    requests: list[Request]
    """In the order of plan.grants."""
    swapped_out: list[Request]
    freed_host_blocks: list[int]
    """Host blocks of requests that the plan swaps in. The plan reads them, so they must not be
    reused before its commit."""
    planned_at: float
    was_held_back: bool
    """Whether the plan was made later than it would have been without drafts."""
    prefix_cache_queries: int
    prefix_cache_hits: int

    @property
    def must_be_awaited(self) -> bool:
        """Whether the next step cannot be planned before this plan is committed.

        There are two reasons. First, a grant verifies drafts or has lookahead slots, so the tokens
        and blocks of its request after the step are unknown. Second, drafts were found since this
        plan was made, for a request that it asks for drafts again: the next grant of that request
        must verify them.
        """
        return self.gives_back or any(
            grant.max_draft_tokens and request.num_proposed_tokens
            for grant, request in zip(self.plan.grants, self.requests, strict=True)
        )

    @property
    def gives_back(self) -> bool:
        """Whether any of its grants gives back blocks."""
        return any(grant.gives_back for grant in self.plan.grants)


class EngineCore:
    """Decides what the device computes, and keeps track of requests and blocks.

    The owner passes every plan that `plan` returns to `commit` or `fail` exactly once, oldest
    first. At most `max_inflight` plans may be open. Otherwise calls may come in any order.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        max_model_len: int,
        limits: StepLimits,
        plugins: PluginHost,
        max_num_queued_reqs: int = 1024,
        max_inflight: int = 1,
        speculation: SpeculationLimits | None = None,
    ) -> None:
        """`speculation` None: there are no drafts."""
        self.max_model_len = max_model_len
        self.pool = BlockPool(num_blocks, block_size)
        self.host_pool = BlockPool(num_host_blocks, block_size)
        self.total_preemptions = 0
        self._limits = limits
        self._plugins = plugins
        self._max_num_queued_reqs = max_num_queued_reqs
        self._max_inflight = max_inflight
        self._drafts = (
            None
            if speculation is None
            else DraftPlanner(plugins.draft_length, speculation, max_model_len)
        )
        self._queues = RequestQueues()
        self._open: deque[_OpenPlan] = deque()
        self._forget: list[str] = []  # ids that the executor should forget
        self._updates: list[RequestUpdate] = []  # made outside of a commit
        self._step_id = 0
        self._last_closed_at = 0.0
        """Time at which the last committed step ended, or at which the device became idle."""
        self._holds_back = False
        """Whether drafts prevent the next step from being planned already."""
        self.wake_at: float | None = None
        """Time at which to call `plan` again. Set when a policy chose to wait."""

    # Requests in and out

    @property
    def num_running(self) -> int:
        return len(self._queues.running)

    @property
    def num_waiting(self) -> int:
        return len(self._queues.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._queues.running or self._queues.waiting or self._open)

    @property
    def kv_cache_usage(self) -> float:
        return self.pool.num_held / self.pool.num_blocks

    def load(self) -> Load:
        """The load that `admit` plugins get."""
        return Load(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            kv_cache_usage=self.kv_cache_usage,
            stalled_for=0.0,
            is_alive=True,
            is_draining=False,
        )

    def add(self, requests: Sequence[Request], now: float) -> None:
        """Queue all choices of one request, or none of them.

        Raises InvalidRequestError for a request that can never run, OverloadedError when the queue
        is full or a plugin refuses, RequestFailedError when an admission plugin raises.
        """
        for request in requests:
            self._check_fits(request)
        if self.num_waiting + len(requests) > self._max_num_queued_reqs:
            raise OverloadedError(
                f"{self.num_waiting} requests are waiting and the limit is "
                f"{self._max_num_queued_reqs} (--max-num-queued-reqs); try again later"
            )
        for request in requests:
            refusal = self._plugins.admit(request.view, self.load())
            if refusal is not None:
                error = RateLimitedError if refusal.is_rate_limit else OverloadedError
                raise error(refusal.reason, retry_after=refusal.retry_after)
        for request in requests:
            request.last_served_step = self._step_id
            self._queues.add(request)
        if self._plugins.observes(Admitted):
            self._plugins.emit(describe_admitted(requests))

    def has(self, engine_id: str) -> bool:
        """Whether the id is in use: its request is live, or ended but still in an open plan."""
        return engine_id in self._queues

    def abort(self, engine_id: str, now: float) -> None:
        """End a request early. Unknown ids are ignored."""
        self.finish(engine_id, FinishReason.ABORT, now)

    def finish(
        self,
        engine_id: str,
        reason: FinishReason,
        now: float,
        *,
        num_tokens: int | None = None,
        stop_reason: str | int | None = None,
    ) -> None:
        """End a request for another reason than a sampled token, for example a stop string.

        The request keeps its first `num_tokens` generated tokens, or all for None. Later tokens are
        neither delivered nor counted.
        """
        request = self._queues.live(engine_id)
        if request is None:
            return
        if num_tokens is not None:
            del request.token_ids[request.num_prompt_tokens + num_tokens :]
        self._end(request, reason, now)
        self._updates.append(
            RequestUpdate(engine_id=engine_id, finish_reason=reason, stop_reason=stop_reason)
        )

    def take_updates(self) -> list[RequestUpdate]:
        """Return and clear the updates that no commit returned: aborts, timeouts, stop strings."""
        updates, self._updates = self._updates, []
        return updates

    def _check_fits(self, request: Request) -> None:
        if request.engine_id in self._queues:
            raise InvalidRequestError(
                f"request id {request.engine_id!r} is in use", param="request_id"
            )
        if request.priority and not self._plugins.order.uses_priority:
            raise InvalidRequestError(
                "priority has no effect under --scheduling-policy fcfs; leave it out or serve with "
                "--scheduling-policy priority",
                param="priority",
            )
        # The last generated token needs no KV of its own.
        needed = self.pool.num_blocks_for(request.num_prompt_tokens + request.max_tokens - 1)
        if needed > self.pool.num_blocks:
            raise InvalidRequestError(
                f"the prompt's {request.num_prompt_tokens} tokens and max_tokens "
                f"{request.max_tokens} need {needed} KV blocks and the cache has "
                f"{self.pool.num_blocks}; shorten the prompt, lower max_tokens or give the server "
                "more KV cache memory",
                param="max_tokens",
            )

    # Planning

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to do now.

        None means that there is no work, that a policy chose to wait (see `wake_at`), or that an
        open plan must be committed first.
        """
        self._expire(now)
        waited, self.wake_at = self.wake_at is not None, None
        if len(self._open) >= self._max_inflight or not (self.num_running or self.num_waiting):
            return None
        if self._drafts is not None and self._open and self._open[-1].must_be_awaited:
            self._holds_back = True
            return None
        if not self._open and (waited or not self.num_running):
            self._last_closed_at = now  # the device was idle: that time is no cost of the next step
            self._holds_back = False
        step = self._decide(now)
        return None if step is None else self._apply(step, now)

    def _expire(self, now: float) -> None:
        for request in self._queues.take_expired(now):
            self.finish(request.engine_id, FinishReason.ABORT, now, stop_reason="request_timeout")

    def _decide(self, now: float) -> Step | None:
        """Let the scheduler decide a step, or the built-in policy if the scheduler fails."""
        step = self._begin_step(now, self._plugins.preempt)
        if step.starving is not None:
            step.schedule(step.starving.view)
        succeeded = self._plugins.schedule(step.view)
        if self._keep(step, succeeded):
            return step
        if succeeded and (step.must_drain or self._open):
            return None  # the owner calls `plan` again after the next commit
        if succeeded and step.wake_at is not None and step.wake_at > now:
            self.wake_at = step.wake_at
            return None
        step = self._begin_step(now, _preempt_last_come)
        decode_first(step.view)
        if not self._keep(step, True):
            return None
        if succeeded:
            self._plugins.reject_schedule("granted nothing although a request could run")
        return step

    def _begin_step(self, now: float, preempt: PreemptHook) -> Step:
        self.pool.begin()
        self.host_pool.begin()
        return Step(
            now=now,
            running=self._queues.running,
            waiting=self._waiting_in_order(now),
            pool=self.pool,
            host_pool=self.host_pool,
            limits=self._limits,
            preempt=preempt,
            starving=self._starving_request(),
        )

    def _keep(self, step: Step, succeeded: bool) -> bool:
        step.close()
        if succeeded and step.grants and not step.must_drain:
            if self._drafts is not None:
                self._drafts.add_drafts(step)
            self.pool.confirm()
            self.host_pool.confirm()
            return True
        self.pool.rollback()
        self.host_pool.rollback()
        return False

    def _waiting_in_order(self, now: float) -> list[Request]:
        """Requests that could start: swapped, other preempted, then the rest by the policy."""
        if self.num_running >= self._limits.max_num_seqs:
            return []
        ready = self._queues.ready()
        preempted = sorted(
            (r for r in ready if r.is_preempted), key=lambda r: (not r.is_swapped, r.rank)
        )
        return preempted + self._plugins.sort_waiting([r for r in ready if not r.is_preempted], now)

    def _starving_request(self) -> Request | None:
        senior = self._queues.most_senior()
        if senior is None or self._step_id - senior.last_served_step < STARVATION_STEPS:
            return None
        return senior

    def _apply(self, step: Step, now: float) -> StepPlan:
        self._step_id += 1
        for preemption in step.preempted.values():
            self._requeue(preemption)
        pendings = list(step.grants.values())
        starts = [pending for pending in pendings if pending.is_start]
        first_starts = [p for p in starts if p.request.first_scheduled_time is None]
        queries = sum(p.request.num_tokens for p in first_starts)
        hits = sum(p.num_hit_tokens for p in first_starts)
        freed_host_blocks = [block for p in starts for block in p.request.host_block_ids]
        plan = StepPlan(
            step_id=self._step_id,
            ended=tuple(self._forget),
            starts=tuple(self._start(pending, now) for pending in starts),
            copies=tuple(step.copies),
            grants=tuple(self._grant(pending) for pending in pendings),
            draft_token_budget=0 if self._drafts is None else step.budget,
        )
        self._forget.clear()
        self._open.append(
            _OpenPlan(
                plan=plan,
                requests=[pending.request for pending in pendings],
                swapped_out=[p.request for p in step.preempted.values() if p.host_block_ids],
                freed_host_blocks=freed_host_blocks,
                planned_at=now,
                was_held_back=self._holds_back,
                prefix_cache_queries=queries,
                prefix_cache_hits=hits,
            )
        )
        self._holds_back = False
        if self._plugins.observes(Planned):
            self._plugins.emit(
                Planned(
                    step_id=plan.step_id, num_requests=len(pendings), num_tokens=plan.num_tokens
                )
            )
        return plan

    def _requeue(self, preemption: PendingPreemption) -> None:
        request = preemption.request
        self.total_preemptions += 1
        self._plugins.emit(
            Preempted(
                request_id=request.request_id,
                prompt_index=request.prompt_index,
                choice_index=request.choice_index,
                mode=preemption.mode,
                fell_back=preemption.fell_back,
                num_computed_tokens=request.num_computed_tokens,
                num_blocks=len(request.block_ids),
                total_cumulative_preemption_cnt=self.total_preemptions,
            )
        )
        self._queues.requeue(request)
        self._forget.append(request.engine_id)
        request.block_ids.clear()
        request.num_proposed_tokens = 0
        request.num_preemptions += 1
        request.num_published_blocks = 0
        if preemption.host_block_ids:
            request.host_block_ids.extend(preemption.host_block_ids)
            request.num_open_plans += 1  # its blocks stay until the copies are made
        else:
            request.num_computed_tokens = 0

    def _start(self, pending: PendingGrant, now: float) -> RequestStart:
        request = pending.request
        self._queues.start(request)
        request.num_computed_tokens = pending.start
        request.host_block_ids.clear()
        request.num_published_blocks = pending.num_hit_tokens // self.pool.block_size
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
            request.num_cached_tokens = pending.num_hit_tokens
        return RequestStart(
            engine_id=request.engine_id,
            token_ids=tuple(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling_params=request.sampling_params,
            seed=request.seed,
            stop_token_ids=request.stop_token_ids,
        )

    def _grant(self, pending: PendingGrant) -> Grant:
        request = pending.request
        start = request.num_computed_tokens + request.num_inflight_tokens
        num_tokens = pending.num_tokens + pending.num_draft_tokens
        request.block_ids.extend(pending.new_block_ids)
        request.num_inflight_tokens += num_tokens
        request.num_inflight_samples += pending.samples
        request.num_proposed_tokens = 0  # the executor drops drafts that are not granted
        request.num_open_plans += 1
        request.last_served_step = self._step_id
        return Grant(
            engine_id=request.engine_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=tuple(pending.new_block_ids),
            samples=pending.samples,
            num_draft_tokens=pending.num_draft_tokens,
            max_draft_tokens=pending.max_draft_tokens,
            num_lookahead_tokens=pending.num_lookahead_tokens,
        )

    # Committing

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestUpdate]:
        """Apply the result of the oldest open plan; returns the updates of its requests."""
        opened = self._close_oldest(plan)
        for request in opened.swapped_out:
            self._unpin(request)
        assert result.step_id == plan.step_id and len(result.token_ids) == len(plan.grants)
        failures = {failure.engine_id: failure.message for failure in result.failures}
        tally = StepTally()
        updates = []
        for i, (grant, request) in enumerate(zip(plan.grants, opened.requests, strict=True)):
            self._settle(request, grant)
            if request.status is RequestStatus.FINISHED:
                continue  # it ended while the step ran: its tokens are dropped
            if request.engine_id in failures:
                updates.append(self._fail(request, failures[request.engine_id], now))
                continue
            update = self._take_in(request, grant, result, i, now, tally)
            if update is not None:
                updates.append(update)
        if self._drafts is not None:
            seconds = now - self._last_closed_at
            self._drafts.observe(plan, result, seconds, was_held_back=opened.was_held_back)
            # `plan` may not have been called since, and would have set this.
            self._holds_back |= self._max_inflight > 1 and opened.gives_back
            self._plugins.flush()
        self._last_closed_at = now
        self._emit_step(opened, tally, now)
        return updates

    def _take_in(
        self,
        request: Request,
        grant: Grant,
        result: StepResult,
        row: int,
        now: float,
        tally: StepTally,
    ) -> RequestUpdate | None:
        """Apply one row of a result.

        Blocks are published before the request may end, because its end gives them back.
        """
        token_ids = result.token_ids[row]
        run = accept(request, grant, token_ids, self.max_model_len)
        for _ in run.token_ids:
            tally.count_token(request, now)
        tally.count_prompt(request)
        publish(self.pool, request)
        if self._drafts is not None and (grant.speculates or request.num_proposed_tokens):
            self._drafts.take_in(request, grant, result, row, tally)
            if grant.gives_back:
                give_back(self.pool, request)
        if run.finish_reason is not None:
            self._end(request, run.finish_reason, now)
        if not grant.samples:
            return None
        logprobs = () if result.logprobs is None else result.logprobs[row][: len(run.token_ids)]
        return RequestUpdate(
            engine_id=request.engine_id,
            token_ids=run.token_ids,
            logprobs=logprobs,
            finish_reason=run.finish_reason,
            stop_reason=run.stop_reason,
        )

    def fail(self, plan: StepPlan, message: str, now: float) -> list[RequestUpdate]:
        """End the requests of the oldest open plan with an error, because its step raised.

        All other requests continue.
        """
        opened = self._close_oldest(plan)
        for request in opened.swapped_out:
            self._distrust_host_copy(request)
            self._unpin(request)
        updates = []
        for grant, request in zip(plan.grants, opened.requests, strict=True):
            self._settle(request, grant)
            if request.status is not RequestStatus.FINISHED:
                updates.append(self._fail(request, message, now))
        self._last_closed_at = now
        self._emit_step(opened, StepTally(), now)
        return updates

    def _close_oldest(self, plan: StepPlan) -> _OpenPlan:
        assert self._open and self._open[0].plan is plan, "plans are committed in order, once each"
        opened = self._open.popleft()
        self.host_pool.drop(opened.freed_host_blocks)
        return opened

    def _distrust_host_copy(self, request: Request) -> None:
        """Have a swapped request recomputed: the step that should have copied its blocks failed."""
        self.host_pool.drop(request.host_block_ids)
        request.host_block_ids.clear()
        request.num_computed_tokens = 0

    def _settle(self, request: Request, grant: Grant) -> None:
        request.num_inflight_tokens -= grant.num_tokens
        request.num_inflight_samples -= grant.samples
        self._unpin(request)

    def _unpin(self, request: Request) -> None:
        request.num_open_plans -= 1
        if request.status is RequestStatus.FINISHED:
            self._release(request)

    def _fail(self, request: Request, message: str, now: float) -> RequestUpdate:
        self._end(request, FinishReason.ERROR, now)
        return RequestUpdate(
            engine_id=request.engine_id, finish_reason=FinishReason.ERROR, error=message
        )

    # Endings

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        self._queues.end(request)
        request.finish_reason = reason
        request.num_proposed_tokens = 0
        if request.first_scheduled_time is not None:
            self._forget.append(request.engine_id)
            if self._drafts is not None:
                self._drafts.end(request)
        if self._plugins.observes(Finished):
            self._plugins.emit(Finished(requests=(describe_finished(request, now),)))
        self._release(request)

    def _release(self, request: Request) -> None:
        """Give back an ended request's blocks, unless an open plan still uses them."""
        if request.num_open_plans:
            return
        self.pool.drop(reversed(request.block_ids))
        self.host_pool.drop(request.host_block_ids)
        request.block_ids.clear()
        request.host_block_ids.clear()
        self._queues.forget(request)

    def _emit_step(self, opened: _OpenPlan, tally: StepTally, now: float) -> None:
        if not self._plugins.observes(StepDone):
            return
        self._plugins.emit(
            StepDone(
                step_id=opened.plan.step_id,
                seconds=now - opened.planned_at,
                num_prompt_tokens=tally.num_prompt_tokens,
                num_generation_tokens=tally.num_generation_tokens,
                num_running=self.num_running,
                num_waiting=self.num_waiting,
                kv_cache_usage=self.kv_cache_usage,
                prefix_cache_queries=opened.prefix_cache_queries,
                prefix_cache_hits=opened.prefix_cache_hits,
                time_to_first_tokens=tuple(tally.time_to_first_tokens),
                inter_token_latencies=tuple(tally.inter_token_latencies),
                num_drafts=tally.num_drafts,
                num_draft_tokens=tally.num_draft_tokens,
                num_accepted_tokens=tally.num_accepted_tokens,
                accepted_tokens_per_pos=tuple(tally.accepted_tokens_per_pos),
            )
        )

    # Self-check

    def check(self) -> None:
        """Raise AssertionError unless the states of blocks, queues and requests agree."""
        held = [0] * self.pool.num_blocks
        for request in self._queues:
            for block in request.block_ids:
                held[block] += 1
            capacity = len(request.block_ids) * self.pool.block_size
            if not request.is_swapped:
                assert request.num_computed_tokens + request.num_inflight_tokens <= capacity, (
                    f"{request.request_id!r} has more tokens than its blocks hold"
                )
        self.pool.check(held)
        host_held = [0] * self.host_pool.num_blocks
        for block in itertools.chain(
            *(r.host_block_ids for r in self._queues), *(o.freed_host_blocks for o in self._open)
        ):
            host_held[block] += 1
        self.host_pool.check(host_held)
        self._queues.check()


def _preempt_last_come(
    step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
) -> Victim | None:
    return last_come(candidates)
