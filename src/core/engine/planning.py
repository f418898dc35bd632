"""Plans steps: lets the scheduler decide one, and turns the decision into a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.explanation import Limit
from ..contract.policy import PreemptionCandidate, RequestView, StepView, Victim
from ..contract.providers.deciders import decode_first, last_come
from ..host.plugin_host import PluginHost
from ..plan import Grant, MediaWork, RequestStart, StepPlan
from ..requests.media import MediaItem, MediaPlace
from .blocks.block_table import BlockTable
from .blocks.pool import BlockPool
from .draft_planning import DraftPlanner
from .media import MediaCounts, MediaPool
from .queues import RequestQueues
from .request import Request, RequestStatus
from .statistics import describe_preempted
from .step import MAX_WAIT, PendingGrant, PendingPreemption, PreemptHook, Step, StepLimits
from .suspects import Suspects

STARVATION_STEPS = 1000
"""Number of steps without a token after which the most senior request is served first, whatever
the policy decides."""


@dataclass(slots=True, eq=False)
class OpenPlan:
    """A plan that is not committed yet, and what its commit must know."""

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
    media: MediaCounts | None
    """None: the model reads only text."""

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


@dataclass(slots=True, eq=False, kw_only=True)
class StepPlanner:
    """Plans one step at a time. It writes the queues, the block pools and the requests."""

    queues: RequestQueues
    pool: BlockPool
    host_pool: BlockPool
    limits: StepLimits
    plugins: PluginHost
    drafts: DraftPlanner | None
    suspects: Suspects
    ended: list[str]
    """Ids of the requests that the next plan lets the executor forget."""
    num_stages: int
    """See ModelInfo.num_stages."""
    media: MediaPool | None
    """None: the model reads no images."""
    step_id: int = 0
    """Id of the last plan."""
    total_preemptions: int = 0
    wake_at: float | None = None
    """Time until which the scheduler chose to wait."""
    measures_until: float = 0.0
    """Plans that are made before this time ask for the regions of their steps."""
    waiting_since: float | None = None
    """Time at which the scheduler first chose to wait, since the last step that it decided itself.
    So a scheduler that always waits fails at once from the second time on. None: it did not."""

    def decide(self, now: float, *, has_open_plans: bool) -> Step | None:
        """Let the scheduler decide a step, or the built-in policy if the scheduler fails.

        None: a plan must be committed first, or the scheduler waits (see `wake_at`).
        """
        if suspects := self.suspects.current():
            return None if has_open_plans else self._decide_apart(suspects, now)
        step = self._begin_step(now, self.plugins.preempt)
        if step.starving is not None:
            step.schedule(step.starving.view)
        succeeded = self.plugins.schedule(step.view)
        if self._keep(step, succeeded):
            self.waiting_since = None
            return step
        if succeeded and (step.must_drain or has_open_plans):
            return None  # the owner calls `plan` again after the next commit
        if succeeded and self._waits(step, now):
            return None
        step = self._begin_step(now, _preempt_last_come)
        decode_first(step.view)
        if not self._keep(step, True):
            return None
        if succeeded:
            self.plugins.reject_schedule(
                "granted nothing although a request could run"
                if self.waiting_since is None
                else f"waited for {MAX_WAIT:g} s although a request could run"
            )
        return step

    def _waits(self, step: Step, now: float) -> bool:
        """Whether the scheduler chose to wait, and may: MAX_WAIT at most between two steps."""
        if step.wake_at is None or step.wake_at <= now:
            return False
        since = now if self.waiting_since is None else self.waiting_since
        if now >= since + MAX_WAIT:
            return False
        self.waiting_since = since
        self.wake_at = min(step.wake_at, since + MAX_WAIT)
        return True

    def _decide_apart(self, suspects: Sequence[Request], now: float) -> Step | None:
        """Let only suspects run. If there is no room for them, let the other requests go on.

        The built-in policy decides, because policies do not know that the step is not for all.
        """
        running = [r for r in suspects if r.status is RequestStatus.RUNNING]
        waiting = [r for r in suspects if r.status is RequestStatus.WAITING]
        waiting = _preempted_first(sorted(waiting, key=lambda r: r.rank))
        others = [r for r in self.queues.running if r not in suspects]
        for group in ((running, waiting), (others, [])):
            step = self._open_step(now, _preempt_last_come, *group, left_out=Limit.ISOLATION)
            decode_first(step.view)
            if self._keep(step, True, drafts=False):
                return step
        return None

    def _begin_step(self, now: float, preempt: PreemptHook) -> Step:
        waiting = self._waiting_in_order(now)
        starving = self._starving_request()
        left_out = Limit.SEQUENCES if self._is_full else Limit.NOT_OFFERED
        return self._open_step(
            now, preempt, self.queues.running, waiting, starving, left_out=left_out
        )

    def _open_step(
        self,
        now: float,
        preempt: PreemptHook,
        running: Sequence[Request],
        waiting: Sequence[Request],
        starving: Request | None = None,
        *,
        left_out: Limit,
    ) -> Step:
        self.pool.begin()
        self.host_pool.begin()
        return Step(
            now=now,
            running=running,
            waiting=waiting,
            pool=self.pool,
            host_pool=self.host_pool,
            limits=self.limits,
            preempt=preempt,
            starving=starving,
            num_stages=self.num_stages,
            left_out=left_out,
            media=self.media,
        )

    def _keep(self, step: Step, succeeded: bool, *, drafts: bool = True) -> bool:
        step.close()
        if succeeded and step.grants and not step.must_drain:
            if drafts and self.drafts is not None:
                self.drafts.add_drafts(step)
            self.pool.confirm()
            self.host_pool.confirm()
            return True
        self.pool.rollback()
        self.host_pool.rollback()
        return False

    def _waiting_in_order(self, now: float) -> list[Request]:
        """Requests that could start, in the order that `SchedulingPolicy` describes."""
        if self._is_full:
            return []
        return _preempted_first(self.plugins.sort_waiting(self.queues.ready(), now))

    @property
    def _is_full(self) -> bool:
        return len(self.queues.running) >= self.limits.max_num_seqs

    def _starving_request(self) -> Request | None:
        senior = self.queues.most_senior()
        if senior is None or self.step_id - senior.last_served_step < STARVATION_STEPS:
            return None
        return senior

    def apply(self, step: Step, now: float, *, was_held_back: bool) -> OpenPlan:
        """Change queues and requests as the step decided, and make its plan."""
        self.step_id += 1
        for preemption in step.preempted.values():
            self._requeue(preemption)
        pendings = list(step.grants.values())
        starts = [pending for pending in pendings if pending.is_start]
        first_starts = [p for p in starts if p.request.first_scheduled_time is None]
        queries = sum(p.request.num_tokens for p in first_starts)
        hits = sum(p.num_hit_tokens for p in first_starts)
        freed_host_blocks = [block for p in starts for block in p.request.host_block_ids]
        work = None if self.media is None else self._apply_media(self.media, step)
        plan = StepPlan(
            step_id=self.step_id,
            ended=tuple(self.ended),
            starts=tuple(self._start(pending, now) for pending in starts),
            copies=tuple(step.copies),
            grants=tuple(self._grant(pending) for pending in pendings),
            draft_token_budget=0 if self.drafts is None else step.budget,
            media=work,
            measures_regions=now < self.measures_until,
        )
        self.ended.clear()
        return OpenPlan(
            plan=plan,
            requests=[pending.request for pending in pendings],
            swapped_out=[p.request for p in step.preempted.values() if p.host_block_ids],
            freed_host_blocks=freed_host_blocks,
            planned_at=now,
            was_held_back=was_held_back,
            prefix_cache_queries=queries,
            prefix_cache_hits=hits,
            media=None if self.media is None else self.media.take_counts(),
        )

    def _apply_media(self, media: MediaPool, step: Step) -> MediaWork | None:
        assert step.media is not None
        work = media.apply(step.media)
        for pending in step.grants.values():
            if pending.request.media:
                end = pending.begin + pending.num_tokens
                media.hold(pending.request, pending.begin, end, step.media)
        return work

    def _requeue(self, preemption: PendingPreemption) -> None:
        request = preemption.request
        self.total_preemptions += 1
        self.plugins.emit(describe_preempted(preemption, self.total_preemptions))
        self.queues.requeue(request)
        self.ended.append(request.engine_id)
        request.tables.clear()
        if self.media is not None:
            self.media.let_go(request)
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
        self.queues.start(request)
        request.num_computed_tokens = pending.start
        request.host_block_ids.clear()
        request.tables = [BlockTable(num_passed=passed) for passed in pending.num_passed_blocks]
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
            bad_word_ids=request.bad_word_ids,
            logits_processors=request.logits_processors,
            media=tuple(map(_place, request.media)) if request.media else (),
        )

    def _grant(self, pending: PendingGrant) -> Grant:
        request = pending.request
        start = request.num_computed_tokens + request.num_inflight_tokens
        num_tokens = pending.num_tokens + pending.num_draft_tokens
        scored = request.scored_range(start, start + pending.num_tokens)
        if pending.new_block_ids:
            for table, block_ids in zip(request.tables, pending.new_block_ids, strict=True):
                table.block_ids.extend(block_ids)
        request.num_inflight_tokens += num_tokens
        request.num_inflight_samples += pending.samples
        request.num_proposed_tokens = 0  # the executor drops drafts that are not granted
        request.num_open_plans += 1
        request.last_served_step = self.step_id
        return Grant(
            engine_id=request.engine_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=tuple(map(tuple, pending.new_block_ids)),
            num_passed_blocks=_num_passed_blocks(request) if self.pool.has_windows else (),
            samples=pending.samples,
            num_draft_tokens=pending.num_draft_tokens,
            max_draft_tokens=pending.max_draft_tokens,
            scored_start=scored.start,
            num_scored_tokens=len(scored),
            num_lookahead_tokens=pending.num_lookahead_tokens,
        )


def _num_passed_blocks(request: Request) -> tuple[int, ...]:
    return tuple([table.num_passed for table in request.tables])


def _place(item: MediaItem) -> MediaPlace:
    return MediaPlace(
        digest=item.digest,
        start=item.start,
        num_tokens=item.num_tokens,
        is_whole=item.is_whole,
        grid=item.grid,
    )


def _preempted_first(requests: Sequence[Request]) -> list[Request]:
    preempted = [r for r in requests if r.is_preempted]
    return preempted + [r for r in requests if not r.is_preempted]


def _preempt_last_come(
    step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
) -> Victim | None:
    return last_come(candidates)
