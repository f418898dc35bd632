"""Says independently of the step log why a request was not computed, from what the step knew."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.core.contract.explanation import Limit
from tokenmill.core.contract.policy import RequestView
from tokenmill.core.engine.media import MediaStep
from tokenmill.core.engine.planning import OpenPlan
from tokenmill.core.engine.request import Request, RequestStatus
from tokenmill.core.engine.step import Step
from tokenmill.core.engine.step_log.log import StepLog
from tokenmill.core.requests.media import cover_spans


class Witness:
    """Watches every call of `Step.schedule` and every decision, and compares the log with them."""

    def __init__(self) -> None:
        self.num_seen: dict[Limit, int] = dict.fromkeys(Limit, 0)
        """How often each limit was found to be right."""
        self._step: Step | None = None
        self._refused: dict[str, Limit] = {}

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Put itself between the policies and the step, and behind the log."""
        schedule, plan, wait = Step.schedule, StepLog.plan, StepLog.wait

        def scheduled(step: Step, view: RequestView, max_tokens: int | None = None) -> int:
            if step._is_open and step is not self._step:
                self._step, self._refused = step, {}
            limit = self._expect(step, view, max_tokens)
            granted = schedule(step, view, max_tokens)
            if limit is None:
                return granted
            request = step._members[view]
            is_hit = request.engine_id in step.preempted
            if limit in (Limit.BLOCKS, Limit.WATERMARK) and step.preempted and (granted or is_hit):
                return granted  # preemption has made room, or has hit the request itself
            assert not granted, f"{request.engine_id} got tokens in spite of: {limit}"
            self._refused.setdefault(request.engine_id, limit)
            return 0

        def planned(log: StepLog, step: Step, opened: OpenPlan, now: float) -> None:
            plan(log, step, opened, now)
            refused = self._refused if step is self._step else {}
            for request in log._queues:
                if request.status is not RequestStatus.FINISHED:
                    self._compare(log, step, refused, request)

        def waited(log: StepLog, now: float) -> None:
            wait(log, now)
            for request in log._queues:
                if request.status is not RequestStatus.FINISHED and not request.num_open_plans:
                    found = log.limit_of(request.engine_id)
                    if found is not Limit.SIBLING:
                        self._agree(request, found, Limit.WAIT_UNTIL)

        patch.setattr(Step, "schedule", scheduled)
        patch.setattr(StepLog, "plan", planned)
        patch.setattr(StepLog, "wait", waited)

    def _compare(
        self, log: StepLog, step: Step, refused: dict[str, Limit], request: Request
    ) -> None:
        name, found = request.engine_id, log.limit_of(request.engine_id)
        if name in step.grants:
            assert found is None, f"{name} is computed, and the log gives the reason {found!s}"
        elif name in step.preempted:
            self._agree(request, found, Limit.BLOCKS)
        elif request.status is RequestStatus.RUNNING:
            if not request.num_open_plans:
                assert request.num_uncomputed_tokens, f"{name} runs, and has nothing to compute"
                self._agree(request, found, refused.get(name, self._left_out(step, running=True)))
        elif name in refused:
            self._agree(request, found, refused[name])
        elif request.group is not None and request.group.must_wait(request):
            self._agree(request, found, Limit.SIBLING)
        else:
            waiting = [limit for one, limit in refused.items() if self._still_waits(log, step, one)]
            first = waiting[0] if waiting else self._left_out(step, running=False)
            self._agree(request, found, first)

    def _still_waits(self, log: StepLog, step: Step, name: str) -> bool:
        return name in log._queues.waiting and name not in step.preempted

    def _left_out(self, step: Step, *, running: bool) -> Limit:
        if step.left_out is Limit.SEQUENCES:
            if running:
                return Limit.NOT_OFFERED
            num_running = len(step._running) + len(step.preempted)  # the step was applied
            assert num_running >= step._limits.max_num_seqs, "there is room to start"
        return step.left_out

    def _agree(self, request: Request, found: Limit | None, expected: Limit) -> None:
        assert found is expected, (
            f"the log gives the reason {found!s} for {request.engine_id}, and it is: {expected}"
        )
        self.num_seen[expected] += 1

    # Why the next call of `schedule` will grant nothing

    def _expect(self, step: Step, view: RequestView, max_tokens: int | None) -> Limit | None:
        """None: it grants tokens, or there is nothing to grant, or the step is over."""
        request: Any = step._members.get(view)
        is_over = request is None or not step._is_open or step.must_drain
        if is_over or request.status is RequestStatus.FINISHED:
            return None
        if request.engine_id in step.grants or request.engine_id in step.preempted:
            return None
        limits = step._limits
        spent = sum(g.num_tokens + g.encoding_cost for g in step.grants.values())
        left = limits.max_num_batched_tokens - spent
        if left <= 0:
            return Limit.BUDGET
        if len(step._members) > len(step.grants) >= step._max_num_grants:
            return Limit.STAGE
        is_start = request.status is RequestStatus.WAITING
        if is_start and (limit := self._start_limit(step, request)) is not None:
            return limit
        hit = step._find_hit(request) if is_start else None
        start = request.num_computed_tokens + request.num_inflight_tokens
        if hit is not None:
            start = max(hit.num_tokens, request.num_computed_tokens if request.is_swapped else 0)
        uncomputed = request.num_tokens - start if is_start else request.num_uncomputed_tokens
        if not uncomputed:
            return None
        allowed = step._token_limits.get(request.engine_id, left)
        if min(allowed, left if max_tokens is None else max_tokens) < 1:
            return Limit.PLUGIN
        threshold = limits.long_prefill_token_threshold if len(step._members) > 1 else 0
        count = int(min(uncomputed, left, allowed, max_tokens or left, threshold or left))
        if step.media is not None and request.media:
            if self._splits_its_image(request, start, count, left):
                return Limit.SPAN
            count = cover_spans(request.media, start, count, left)
            if self._lacks_its_image(step.media, request, start, left):
                return Limit.MEDIA
            count = step.media.reach(request, start, count, left)
        return self._room_limit(step, request, hit, start, count)

    def _splits_its_image(self, request: Request, start: int, count: int, left: int) -> bool:
        """Whether the first token begins an image that the rest of the step cannot compute."""
        begun = [item for item in request.media if item.is_whole and item.start == start]
        return any(item.num_tokens > max(count, left) for item in begun)

    def _lacks_its_image(self, media: MediaStep, request: Request, start: int, budget: int) -> bool:
        """Whether the first token belongs to an image that cannot be encoded or used now."""
        held = [item.start for item in request.held_items]
        needed = [i for i in request.media if i.start <= start < i.end and i.start not in held]
        if not needed or needed[0].digest in media.encoded:
            return False
        [item], pool = needed, media._pool
        if item.digest in pool._sizes and item.digest not in media.evicted:
            shares = any(one.digest == item.digest for one in request.held_items)
            return item.digest in pool._fresh and not shares
        kept = {d for d in pool._sizes if d in pool._holders or d in media._takers}
        used = sum(pool._sizes[digest] for digest in kept) + sum(media.encoded.values())
        if pool.size_of(item) > pool.cache_bytes - used:
            return True
        return bool(media.encoded) and item.cost >= budget

    def _start_limit(self, step: Step, request: Request) -> Limit | None:
        if step.preempted:
            return Limit.BLOCKS
        starts = sum(grant.is_start for grant in step.grants.values())
        if len(step._running) + starts >= step._limits.max_num_seqs:
            return Limit.SEQUENCES
        if request.num_open_plans:
            return Limit.SWAPPING
        waiting = [step._members[view] for view in step.waiting]
        preempted = [r for r in waiting if r.is_preempted and r.engine_id not in step.grants]
        is_last = any(other.rank < request.rank for other in preempted)
        if is_last and not request.is_preempted:
            return Limit.SENIOR
        starving = step.starving
        if starving is not None and starving is not request and starving.rank < request.rank:
            return Limit.SENIOR
        return None

    def _room_limit(
        self, step: Step, request: Request, hit: Any, start: int, count: int
    ) -> Limit | None:
        pool, free = step._pool, step._pool.num_available
        if hit is None:
            wanted = pool.num_blocks_for(start + count)
            lens = [len(table.block_ids) + table.num_passed for table in request.tables]
            return Limit.BLOCKS if sum(max(0, wanted - n) for n in lens) > free else None
        passed = pool.num_passed_blocks(start)
        shared = [*step._hits_at_start(hit, passed)]
        revived = {b for ids in shared for b in ids if not pool._ref_counts[b]}
        wanted = sum(step._blocks_at_start(request, passed)) - sum(map(len, shared))
        free -= len(revived)
        if wanted > free:
            return Limit.BLOCKS
        others = len(step._running) + sum(g.is_start for g in step.grants.values())
        if wanted + (step._limits.watermark_blocks if others else 0) > free:
            return Limit.WATERMARK
        return None
