"""Commits steps: applies their results to requests, ends requests, and gives back their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.events import Finished
from ..host.plugin_host import PluginHost
from ..outputs import FinishReason
from ..plan import Grant, StepResult, TokenLogprobs
from .accepting import accept, drop_passed, give_back, publish
from .blocks.pool import BlockPool
from .draft_planning import DraftPlanner
from .media import MediaPool
from .planning import OpenPlan
from .queues import RequestQueues
from .request import Request, RequestStatus
from .statistics import StepTally, describe_finished
from .suspects import Suspect, Suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUpdate:
    """The changes to one request since its previous update."""

    engine_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """For the prompt tokens after those of earlier updates. The first prompt token has none."""
    pooled: tuple[float, ...] = ()
    """The sum of the hidden states that this step added to the embedding."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class StepCommitter:
    """Commits one plan at a time. It writes the queues, the block pools and the requests."""

    queues: RequestQueues
    pool: BlockPool
    host_pool: BlockPool
    max_model_len: int
    plugins: PluginHost
    drafts: DraftPlanner | None
    suspects: Suspects
    ended: list[str]
    """Ids of the requests that the next plan lets the executor forget."""
    media: MediaPool | None
    """None: the model reads no images."""

    def commit(
        self, opened: OpenPlan, result: StepResult, now: float, tally: StepTally
    ) -> list[RequestUpdate]:
        """Apply a result, and count its tokens in `tally`; returns the updates of the requests."""
        plan = opened.plan
        if self.media is not None:
            self.media.commit(plan.media)
        for request in opened.swapped_out:
            self._unpin(request)
        failures = {failure.engine_id: failure.message for failure in result.failures}
        updates = []
        for i, (grant, request) in enumerate(zip(plan.grants, opened.requests, strict=True)):
            if not self._settle(request, grant):
                continue  # its tokens are dropped
            failure = failures.get(request.engine_id) or _misfit(grant, result.token_ids[i])
            if failure is not None:
                updates.append(self._fail(request, failure, now))
                continue
            update = self._take_in(request, grant, result, i, now, tally)
            if update is not None:
                updates.append(update)
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
        scored = () if result.prompt_logprobs is None else result.prompt_logprobs[row]
        pooled = () if result.pooled is None else result.pooled[row]
        request.num_scored_tokens += grant.num_scored_tokens if pooled else len(scored)
        run = accept(request, grant, token_ids, self.max_model_len)
        for _ in run.token_ids:
            tally.count_token(request, now)
        tally.count_prompt(request)
        publish(self.pool, request)
        if self.drafts is not None and (grant.speculates or request.num_proposed_tokens):
            self.drafts.take_in(request, grant, result, row, tally)
            if grant.gives_back:
                give_back(self.pool, request)
        drop_passed(self.pool, request)
        if self.media is not None:
            self.media.drop_passed(request)
        if run.finish_reason is not None:
            self.end(request, run.finish_reason, now)
        if not (grant.samples or scored or pooled or run.finish_reason is not None):
            return None
        logprobs = () if result.logprobs is None else result.logprobs[row][: len(run.token_ids)]
        return RequestUpdate(
            engine_id=request.engine_id,
            token_ids=run.token_ids,
            logprobs=logprobs,
            prompt_logprobs=scored,
            pooled=pooled,
            finish_reason=run.finish_reason,
            stop_reason=run.stop_reason,
        )

    def fail(self, opened: OpenPlan, message: str, now: float) -> list[RequestUpdate]:
        """Have the requests of a plan computed again, because its step raised.

        If the step computed only one request, that request ends with an error instead.
        """
        for request in opened.swapped_out:
            self._distrust_host_copy(request)
            self._unpin(request)
        num_computed = sum(not request.num_stale_plans for request in opened.requests)
        pairs = zip(opened.requests, opened.plan.grants, strict=True)
        failed = [(request, grant) for request, grant in pairs if self._settle(request, grant)]
        updates = []
        if num_computed == 1:
            updates = [self._fail(request, message, now) for request, _ in failed]
        elif failed:
            self._suspect(failed)
        if self.media is not None:
            self.media.fail(opened.plan.media)
        return updates

    def _suspect(self, failed: Sequence[tuple[Request, Grant]]) -> None:
        """Repeat these requests. Suspects hold no blocks, so that those repeated next find room."""
        self.suspects.split(
            [
                Suspect(request, grant.start + grant.num_tokens - grant.num_draft_tokens)
                for request, grant in failed
            ]
        )
        for request in self.suspects:
            if request.status is RequestStatus.RUNNING:
                self._take_back(request)

    def _take_back(self, request: Request) -> None:
        """Let a running request wait again, with all of its tokens to be recomputed."""
        self.queues.requeue(request)
        self.ended.append(request.engine_id)
        self.pool.drop(reversed(request.block_ids))
        request.tables.clear()
        if self.media is not None:
            self.media.let_go(request)
        request.num_published_blocks = 0
        request.num_computed_tokens = request.num_proposed_tokens = 0
        request.num_inflight_tokens = request.num_inflight_samples = 0
        request.num_stale_plans = request.num_open_plans

    def _distrust_host_copy(self, request: Request) -> None:
        """Have a swapped request recomputed: the step that should have copied its blocks failed."""
        self.host_pool.drop(request.host_block_ids)
        request.host_block_ids.clear()
        request.num_computed_tokens = 0

    def _settle(self, request: Request, grant: Grant) -> bool:
        """Close a grant; False if its result does not count: the request ended, or was taken back,
        while the step ran."""
        is_stale = request.num_stale_plans > 0
        if is_stale:
            request.num_stale_plans -= 1
        else:
            request.num_inflight_tokens -= grant.num_tokens
            request.num_inflight_samples -= grant.samples
        self._unpin(request)
        return not is_stale and request.status is not RequestStatus.FINISHED

    def _unpin(self, request: Request) -> None:
        request.num_open_plans -= 1
        if request.status is RequestStatus.FINISHED:
            self._release(request)

    def _fail(self, request: Request, message: str, now: float) -> RequestUpdate:
        self.end(request, FinishReason.ERROR, now)
        return RequestUpdate(
            engine_id=request.engine_id, finish_reason=FinishReason.ERROR, error=message
        )

    def end(self, request: Request, reason: FinishReason, now: float) -> None:
        """End a live request. Its blocks are given back once no open plan uses them."""
        self.queues.end(request)
        request.finish_reason = reason
        request.finished_time = now
        request.num_proposed_tokens = 0
        if self.media is not None:
            self.media.end(request)
        if request.first_scheduled_time is not None:
            self.ended.append(request.engine_id)
            if self.drafts is not None:
                self.drafts.end(request)
        if self.plugins.observes(Finished):
            self.plugins.emit(Finished(requests=(describe_finished(request, now),)))
        self._release(request)

    def _release(self, request: Request) -> None:
        """Give back an ended request's blocks, unless an open plan still uses them."""
        if request.num_open_plans:
            return
        self.pool.drop(reversed(request.block_ids))
        self.host_pool.drop(request.host_block_ids)
        request.tables.clear()
        request.host_block_ids.clear()
        self.queues.forget(request)


def _misfit(grant: Grant, token_ids: Sequence[int]) -> str | None:
    """The error in the number of tokens that the executor returned for a grant, or None."""
    if not grant.samples or 0 < len(token_ids) <= 1 + grant.num_draft_tokens:
        return None
    return f"the executor returned {len(token_ids)} tokens for this request"
