"""The engine as a synchronous state machine: `add`, `abort`, `plan`, `commit`.

It has no threads, no `await` and no tensors. Clock and executor stay outside, so that a simulator
can drive it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence

from ..contract.activity import Activity, LiveRequest
from ..contract.client import Load
from ..contract.events import Admitted, Planned, PrefixCacheChanged, Refused, StepDone
from ..contract.policy import Refusal
from ..contract.providers.speculation import SpeculationLimits
from ..errors import InvalidRequestError, OverloadedError, RateLimitedError, named
from ..host.plugin_host import PluginHost
from ..outputs import FinishReason
from ..plan import StepPlan, StepResult
from .blocks.pool import BlockPool
from .committing import RequestUpdate, StepCommitter
from .draft_planning import DraftPlanner
from .media import MediaCounts, MediaPool
from .planning import OpenPlan, StepPlanner
from .queues import RequestQueues
from .request import Request
from .statistics import (
    StepTally,
    describe_admitted,
    describe_live,
    describe_planned,
    describe_refused,
)
from .steady import SteadyDecoding
from .step import StepLimits
from .step_log.ledger import NO_HOOKS, HookTimes
from .step_log.log import StepLog
from .suspects import Suspects


class EngineCore:
    """Decides what the device computes, and keeps track of requests and blocks.

    The owner passes every plan that `plan` returns to `commit` or `fail` exactly once, oldest
    first. Otherwise calls may come in any order.

    With one stage, at most `max_inflight` plans are open, and each may continue the one before it.
    With several stages, one plan per stage is open, and no two of them have a request in common.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        kv_windows: Sequence[int | None] = (None,),
        max_model_len: int,
        limits: StepLimits,
        plugins: PluginHost,
        max_num_queued_reqs: int = 1024,
        max_inflight: int = 1,
        num_stages: int = 1,
        speculation: SpeculationLimits | None = None,
        step_log_size: int = 0,
        hook_times: HookTimes = NO_HOOKS,
        media: MediaPool | None = None,
    ) -> None:
        """`kv_windows`, `num_stages`: see ModelInfo. `speculation` None: there are no drafts.
        `media` None: the model reads no images.
        `step_log_size`: in bytes, 0: no step log; `hook_times`: for the step log."""
        self.max_model_len = max_model_len
        self.pool = BlockPool(num_blocks, block_size, kv_windows)
        if limits.enable_prefix_caching and plugins.observes(PrefixCacheChanged):
            self.pool.changes = []
        self.host_pool = BlockPool(num_host_blocks, block_size)
        self.media = media
        self._blocks, self._blocks_at = "", 0.0
        self._plugins = plugins
        self._step_tokens = limits.max_num_batched_tokens
        self._max_num_queued_reqs = max_num_queued_reqs
        self.max_open_plans = max_inflight if num_stages == 1 else num_stages
        """Maximum number of plans that are neither committed nor failed."""
        self._continues_open_plans = num_stages == 1 and max_inflight > 1
        self._drafts = (
            None
            if speculation is None
            else DraftPlanner(plugins.draft_length, speculation, max_model_len)
        )
        self._queues = RequestQueues()
        self.log = (
            StepLog(step_log_size, self._queues, self.pool, hook_times) if step_log_size else None
        )
        suspects = Suspects()
        ended: list[str] = []
        self._planner = StepPlanner(
            queues=self._queues,
            pool=self.pool,
            host_pool=self.host_pool,
            limits=limits,
            plugins=plugins,
            drafts=self._drafts,
            suspects=suspects,
            ended=ended,
            num_stages=num_stages,
            media=media,
        )
        self._committer = StepCommitter(
            queues=self._queues,
            pool=self.pool,
            host_pool=self.host_pool,
            max_model_len=max_model_len,
            plugins=plugins,
            drafts=self._drafts,
            suspects=suspects,
            ended=ended,
            media=media,
        )
        is_plain = speculation is None and media is None and self.log is None and num_stages == 1
        self.steady = (
            SteadyDecoding(
                queues=self._queues,
                pool=self.pool,
                planner=self._planner,
                plugins=plugins,
                max_model_len=max_model_len,
            )
            if is_plain and plugins.decodes_all and tuple(kv_windows) == (None,)
            else None
        )
        """For simulations; None if each step must be planned."""
        self._open: deque[OpenPlan] = deque()
        self._updates: list[RequestUpdate] = []  # made outside of a commit
        self._last_closed_at = 0.0
        """Time at which the last committed step ended, or at which the device became idle."""
        self._holds_back = False
        """Whether drafts prevent the next step from being planned already."""

    # Requests in and out

    @property
    def num_running(self) -> int:
        return len(self._queues.running)

    @property
    def num_waiting(self) -> int:
        return len(self._queues.waiting)

    @property
    def total_preemptions(self) -> int:
        return self._planner.total_preemptions

    @property
    def is_isolating(self) -> bool:
        """Whether the requests of a step that raised are being repeated in groups."""
        return bool(self._planner.suspects.current())

    @property
    def wake_at(self) -> float | None:
        """Time at which to call `plan` again. None unless a policy chose to wait."""
        return self._planner.wake_at

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

    def describe_live(self, now: float) -> tuple[LiveRequest, ...]:
        """The requests that have not ended, in order of arrival."""
        return tuple(
            describe_live(request, now, self._limit_of(request))
            for request in sorted(self._queues, key=lambda r: r.sequence)
            if request.finish_reason is None
        )

    def _limit_of(self, request: Request) -> str | None:
        return None if self.log is None else self.log.limit_of(request.engine_id)

    def activity(self, after_step: int, now: float) -> Activity:
        """Requests, blocks, and the steps after a step."""
        return Activity(
            requests=self.describe_live(now),
            steps=() if self.log is None else self.log.activity(after_step),
            last_step=-1 if self.log is None else self.log.last_step,
            blocks=self._describe_blocks(now),
            host_blocks_used=self.host_pool.num_held,
            host_blocks_total=self.host_pool.num_blocks,
        )

    def _describe_blocks(self, now: float) -> str:
        """The states of all blocks, at most a second old: all who watch share it."""
        if now - self._blocks_at >= 1.0 or not self._blocks:
            self._blocks_at, self._blocks = now, self.pool.describe()
        return self._blocks

    def add(self, requests: Sequence[Request], now: float) -> None:
        """Queue all choices of one request, or none of them.

        Raises InvalidRequestError for a request that can never run, OverloadedError when the queue
        is full or a plugin refuses, RequestFailedError when an admission plugin raises.
        """
        for request in requests:
            self._check_fits(request)
        if self.num_waiting + len(requests) > self._max_num_queued_reqs:
            raise self._refused(
                requests,
                Refusal(
                    reason=f"{self.num_waiting} requests are waiting and the limit is "
                    f"{self._max_num_queued_reqs} (--max-num-queued-reqs); try again later"
                ),
            )
        load = self.load()
        for request in requests:
            refusal = self._plugins.admit(request.view, load)
            if refusal is not None:
                raise self._refused(requests, refusal, self._plugins.refusing_plugin)
        self._add_media(requests)
        for request in requests:
            request.last_served_step = self._planner.step_id
            self._queues.add(request)
        if self.log is not None:
            self.log.add(requests, now)
        if self._plugins.observes(Admitted):
            self._plugins.emit(describe_admitted(requests))

    def _add_media(self, requests: Sequence[Request]) -> None:
        """The choices of a request have the same images."""
        if self.media is None or not requests[0].media:
            return
        try:
            self.media.add(requests)
        except OverloadedError as error:
            raise self._refused(requests, Refusal(reason=str(error))) from None

    def _refused(
        self, requests: Sequence[Request], refusal: Refusal, plugin: str | None = None
    ) -> OverloadedError:
        """Report a refusal to observers; returns the error for the sender."""
        if self._plugins.observes(Refused):
            self._plugins.emit(describe_refused(requests, refusal, plugin))
        error = RateLimitedError if refusal.is_rate_limit else OverloadedError
        return error(refusal.reason, retry_after=refusal.retry_after)

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
        self._committer.end(request, reason, now)
        if self.log is not None:
            self.log.end(engine_id, now)
        self._updates.append(
            RequestUpdate(engine_id=engine_id, finish_reason=reason, stop_reason=stop_reason)
        )

    def take_updates(self) -> list[RequestUpdate]:
        """Return and clear the updates that no commit returned: aborts, timeouts, stop strings."""
        updates, self._updates = self._updates, []
        return updates

    def reset_prefix_cache(self) -> bool:
        """Forget the blocks that no request holds. Return whether the prefix cache is empty now."""
        is_empty = self.pool.forget()
        self._report_changes(is_cleared=is_empty)
        return is_empty

    def measure_regions(self, until: float) -> None:
        """Let the plans that are made before `until` ask for the regions of their steps, which the
        step log keeps. A time that has passed ends it."""
        if self.log is not None:
            self._planner.measures_until = until

    def _report_changes(self, *, is_cleared: bool = False) -> None:
        if changes := self.pool.take_changes():
            self._plugins.emit(PrefixCacheChanged(changes=changes, is_cleared=is_cleared))

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
        num_tokens = request.num_prompt_tokens + max(request.max_tokens - 1, 0)
        needed = sum(self.pool.max_blocks_held(num_tokens, self._step_tokens))
        if needed > self.pool.num_blocks:
            raise InvalidRequestError(
                f"the prompt's {request.num_prompt_tokens} tokens and {named('max_tokens')} "
                f"{request.max_tokens} need {needed} KV blocks and the cache has "
                f"{self.pool.num_blocks}; shorten the prompt, lower {named('max_tokens')} or give "
                "the server more KV cache memory",
                param="max_tokens",
            )

    # Planning

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing to do now.

        None means that there is no work, that a policy chose to wait (see `wake_at`), or that an
        open plan must be committed first.
        """
        self._expire(now)
        waited, self._planner.wake_at = self.wake_at is not None, None
        if not (self.num_running or self.num_waiting):
            self._planner.waiting_since = None
            return None
        if len(self._open) >= self.max_open_plans:
            return None
        if self._open and not self._may_follow(self._open[-1]):
            return None
        if not self._open and (waited or not self.num_running):
            self._last_closed_at = now  # the device was idle: that time is no cost of the next step
            self._holds_back = False
        step = self._planner.decide(now, has_open_plans=bool(self._open))
        if step is None:
            if self.log is not None and self.wake_at is not None:
                self.log.wait(now)
            return None
        opened = self._planner.apply(step, now, was_held_back=self._holds_back)
        self._open.append(opened)
        self._holds_back = False
        if self.log is not None:
            self.log.plan(step, opened, now)
        if self._plugins.observes(Planned):
            self._plugins.emit(describe_planned(opened.plan))
        return opened.plan

    def _may_follow(self, last: OpenPlan) -> bool:
        """Whether a plan may be made before the `last` open one is committed."""
        if not self._continues_open_plans:  # at least one request must be in no open plan
            return bool(self.num_waiting) or any(not r.num_open_plans for r in self._queues.running)
        if self._drafts is not None and last.must_be_awaited:
            self._holds_back = True
            return False
        return True

    def _expire(self, now: float) -> None:
        for request in self._queues.expired(now):
            self.finish(request.engine_id, FinishReason.ABORT, now, stop_reason="request_timeout")

    # Committing

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestUpdate]:
        """Apply the result of the oldest open plan; returns the updates of its requests.

        The result must have passed `check_result`.
        """
        opened = self._close_oldest(plan)
        tally = StepTally()
        if self.log is not None:
            self.log.commit(opened, now, result.encoder_seconds)
        updates = self._committer.commit(opened, result, now, tally)
        if self.log is not None:
            self.log.apply(opened, result, updates, now)
        if self._drafts is not None:
            seconds = now - self._last_closed_at
            self._drafts.observe(plan, result, seconds, was_held_back=opened.was_held_back)
            # `plan` may not have been called since, and would have set this.
            self._holds_back |= self._continues_open_plans and opened.gives_back
        self._plugins.flush()
        self._last_closed_at = now
        tally.expert_tokens, tally.encoder_seconds = result.expert_tokens, result.encoder_seconds
        self._emit_step(opened, tally, now)
        return updates

    def fail(self, plan: StepPlan, message: str, now: float) -> list[RequestUpdate]:
        """Close the oldest open plan, because its step raised.

        Its requests are computed again, in two groups and apart from all others. A group that
        raises is split again. A request that was alone ends with the error `message`.
        """
        opened = self._close_oldest(plan)
        if self.log is not None:
            self.log.commit(opened, now)
        updates = self._committer.fail(opened, message, now)
        if self.log is not None:
            self.log.apply(opened, None, updates, now)
        self._last_closed_at = now
        self._emit_step(opened, StepTally(), now, raised=True)
        return updates

    def _close_oldest(self, plan: StepPlan) -> OpenPlan:
        assert self._open and self._open[0].plan is plan, "plans are committed in order, once each"
        opened = self._open.popleft()
        self.host_pool.drop(opened.freed_host_blocks)
        return opened

    def _emit_step(
        self, opened: OpenPlan, tally: StepTally, now: float, *, raised: bool = False
    ) -> None:
        self._report_changes()
        if not self._plugins.observes(StepDone):
            return
        media = opened.media or MediaCounts()
        self._plugins.emit(
            StepDone(
                step_id=opened.plan.step_id,
                raised=raised,
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
                expert_tokens=tally.expert_tokens,
                mm_cache_queries=media.num_queries,
                mm_cache_hits=media.num_hits,
                num_encoded_tokens=0 if raised else media.num_encoded_tokens,
                encoder_seconds=tally.encoder_seconds,
            )
        )

    # Self-check

    def check(self) -> None:
        """Raise AssertionError unless the states of blocks, queues and requests agree."""
        held = [0] * self.pool.num_blocks
        for request in self._queues:
            for block in request.block_ids:
                held[block] += 1
            shortest = min(map(len, request.tables), default=0)
            capacity = shortest * self.pool.block_size
            if request.tables:
                passed = self.pool.num_passed_blocks(request.num_computed_tokens)
                assert tuple(table.num_passed for table in request.tables) == passed, (
                    f"{request.request_id!r} has other blocks than those in its windows"
                )
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
        if self.media is not None:
            self.media.check(self._queues)
