"""Computes plans: the model's forward pass over one flat batch, then the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch

from ...core.plan import (
    Grant,
    RequestFailure,
    RequestStart,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from ...core.requests.media import MediaItem
from ..attention.base import AttentionBackend
from ..grammar.base import Matcher
from ..grammar.grammars import NO_BACKEND, FailedMatcher, Grammars
from ..linear.base import Embedding
from ..machine.step_regions import StepRegions
from ..models.base import Model
from ..sampling.batch import SamplingBatch
from ..sampling.ops import SamplingOps
from ..sampling.processing.calling import LogitsProcessing
from ..sampling.sampler import Sampled, sample
from ..state.input_batch import InputBatch, build_input_batch
from ..state.kv_cache import KVCache, copy_blocks
from ..state.request_state import RequestState
from .image_model import ImageModel
from .layered_model import LayeredModel
from .outcome import NOT_FINITE, Outcome, read_outcomes
from .proposing import Propose, Proposer
from .request_states import RequestStates
from .scoring import Score, pools_any, score_prompts


class StepModel(Protocol):
    """A model that computes a whole step in one call."""

    def logits(self, batch: InputBatch) -> torch.Tensor:
        """float32 [r, v] of the batch's sampled rows, after all its K and V are in the cache."""
        ...

    def hidden_states(self) -> torch.Tensor:
        """The hidden states [r, e] after the last norm, of the rows of the last call of `logits`.
        Valid until its next call."""
        ...

    @property
    def sampling(self) -> SamplingOps:
        """The operations that sample from the result of `logits`."""
        ...


class ModelRunner:
    """Runs plans. Keeps what plans do not repeat: tokens, block tables, sampling parameters."""

    def __init__(
        self,
        decoder: Model,
        attention: AttentionBackend,
        kv_cache: KVCache,
        model: StepModel | None = None,
        propose: Propose | None = None,
        *,
        needs_hidden_states: bool = False,
        processing: LogitsProcessing | None = None,
        grammars: Grammars | None = None,
        images: ImageModel | None = None,
        regions: StepRegions | None = None,
    ) -> None:
        """`model` computes whole steps of the decoder; None runs it layer by layer. `propose` is
        asked for drafts after each step, with hidden states if `needs_hidden_states`. `processing`
        calls the logits processors; None: there are none. Without `grammars`, requests with a
        grammar fail. `images` computes the steps with images; None: the model reads text.
        `regions`: the model's calls and the runner add their regions to it."""
        self._decoder = decoder
        self._vocab_size = decoder.config.vocab_size
        self._model = model or LayeredModel(decoder, attention, kv_cache)
        self._used: StepModel = self._model
        """The model that has computed the last step."""
        self._images = images
        self._attention = attention
        self._kv_cache = kv_cache
        self._requests = RequestStates(self._vocab_size, kv_cache, partial(_make_matcher, grammars))
        self._reports_drafts = not decoder.config.has_embedding
        self._sampling: SamplingBatch | None = None
        self._proposer = None if propose is None else Proposer(propose, self._vocab_size)
        self._needs_hidden_states = needs_hidden_states
        self._processing = processing
        self._grammars = grammars
        self._regions = regions or StepRegions()

    @property
    def states(self) -> Mapping[str, RequestState]:
        """The states by `engine_id`. A live view: it changes with every step."""
        return self._requests.by_id

    @property
    def embedding(self) -> Embedding:
        return self._decoder.embedding

    @property
    def sampling(self) -> SamplingOps:
        return self._model.sampling

    def take_media(self, items: Sequence[MediaItem]) -> None:
        """Keep the pixels of a request's images. Called from any thread."""
        if self._images is not None:
            self._images.take(items)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. If it raises, the requests of the plan are lost and all others are not
        affected.

        The next plan may be made before the failure is known, and then still grants lost requests.
        Such grants are skipped.
        """
        self._forget(plan)
        rows = self._requests.rows(plan)
        try:
            result = self._compute(plan, rows)
        except BaseException:
            self._requests.lose(plan.grants)
            raise
        if plan.media is None or self._images is None:
            return result
        return replace(result, encoder_seconds=self._images.seconds)

    def lose(self, plan: StepPlan) -> None:
        """Treat the plan's requests as lost, as if `run` had raised. For a failure before `run`."""
        self._forget(plan)
        self._requests.lose(plan.grants)

    def _compute(self, plan: StepPlan, rows: Sequence[int]) -> StepResult:
        """Compute the grants with indices `rows`; the others get no token."""
        states = self._requests.take_in(plan, rows)
        for copies in plan.copies:
            copy_blocks(self._kv_cache, self._attention, copies)
        if plan.media is not None and self._images is not None:
            self._images.encode(plan.media)
        if not rows:
            return _make_result(plan, {}, {})
        grants = [plan.grants[row] for row in rows]
        cache = self._kv_cache
        batch = build_input_batch(grants, states, cache.block_size, cache.device)
        logits_rv = self._logits(batch, grants, states)
        scores: dict[int, Score] = {}
        if batch.scored:
            num_sampled = len(logits_rv) - batch.num_scored_rows
            order = [batch.grant_order[i] for i in batch.scored]
            scored = [(grants[i], states[i]) for i in order]
            hidden_re = self._used.hidden_states() if pools_any(scored) else None
            found = score_prompts(logits_rv, hidden_re, num_sampled, scored)
            scores = {rows[i]: one for i, one in zip(order, found, strict=True)}
            logits_rv = logits_rv[:num_sampled]
        if not batch.sampled:
            return _make_result(plan, {}, scores)
        order = [batch.grant_order[i] for i in batch.sampled]
        sampled = self._sample(logits_rv, batch, [states[i] for i in order])
        outcomes = read_outcomes([states[i] for i in order], sampled)
        for outcome in outcomes:
            outcome.state.settle(outcome.token_ids)
        self._regions.end("sampling")
        by_row = {rows[i]: outcome for i, outcome in zip(order, outcomes, strict=True)}
        if self._proposer is None or not any(grant.speculates for grant in grants):
            return _make_result(plan, by_row, scores)
        return self._speculate(plan, by_row, scores, self._proposer)

    def _logits(
        self, batch: InputBatch, grants: Sequence[Grant], states: Sequence[RequestState]
    ) -> torch.Tensor:
        self._used = self._model
        if self._images is not None and (step := self._images.step(batch, grants, states)):
            self._used = self._images.model
            return self._images.logits(step)
        return self._model.logits(batch)

    def _speculate(
        self,
        plan: StepPlan,
        by_row: Mapping[int, Outcome],
        scores: Mapping[int, Score],
        proposer: Proposer,
    ) -> StepResult:
        """Ask for drafts, then give back the blocks that known tokens and drafts do not need."""
        fine = [(plan.grants[i], outcome) for i, outcome in by_row.items() if outcome.error is None]
        hidden_re = self._used.hidden_states() if self._needs_hidden_states else None
        got = proposer.propose(plan, fine, hidden_re)
        self._regions.end("drafts")
        for grant, outcome in fine:
            if grant.gives_back:
                outcome.state.give_back(self._kv_cache.block_size)
        result = _make_result(plan, by_row, scores)
        if not got:
            return replace(result, proposal_seconds=proposer.seconds)
        drafts: list[tuple[int, ...]] = [()] * len(plan.grants)
        for row, outcome in by_row.items():
            drafts[row] = tuple(outcome.state.draft_token_ids)
        return replace(
            result,
            num_proposed_tokens=tuple(map(len, drafts)),
            proposed_token_ids=tuple(drafts) if self._reports_drafts else None,
            proposal_seconds=proposer.seconds,
        )

    def _forget(self, plan: StepPlan) -> None:
        if self._proposer is not None:
            self._proposer.follow(plan)
        self._requests.forget(plan)
        if plan.media is not None and self._images is not None:
            self._images.forget(plan.media)

    def _sample(
        self, logits_rv: torch.Tensor, batch: InputBatch, states: Sequence[RequestState]
    ) -> Sampled:
        if self._sampling is None or not self._sampling.holds(states):
            self._sampling = SamplingBatch(states, logits_rv.shape[1], logits_rv.device)
        rows_r = batch.sampled_rows_r[: len(logits_rv)] if batch.scored else batch.sampled_rows_r
        positions_r = batch.positions_t.index_select(0, rows_r) + 1
        masks = None
        if self._sampling.grammars and self._grammars is not None:
            masks = self._sampling.grammars.masks(self._grammars, logits_rv.shape[1])
        return sample(
            logits_rv, self._sampling, positions_r, self._used.sampling, self._processing, masks
        )


def _make_result(
    plan: StepPlan, by_row: Mapping[int, Outcome], scores: Mapping[int, Score]
) -> StepResult:
    """The step's result, aligned with the plan's grants. `by_row` has outcomes by grant index, and
    `scores` the scores of prompt tokens.

    If any number of a request is not finite, the request yields a failure and no token. Its state
    keeps the tokens, because the next plan may already compute them. That step then fails in the
    same way.
    """
    token_ids: list[tuple[int, ...]] = [()] * len(plan.grants)
    logprobs: list[tuple[TokenLogprobs, ...]] = [()] * len(plan.grants)
    prompt_logprobs: list[tuple[TokenLogprobs, ...]] = [()] * len(plan.grants)
    pooled: list[tuple[float, ...]] = [()] * len(plan.grants)
    errors: dict[int, str] = {}
    for row, outcome in by_row.items():
        if outcome.error is None:
            token_ids[row] = tuple(outcome.token_ids)
            logprobs[row] = outcome.logprobs
        else:
            errors[row] = outcome.error
    for row, scored in scores.items():
        if scored is None:
            errors[row] = NOT_FINITE
        else:
            prompt_logprobs[row], pooled[row] = scored.logprobs, scored.pooled
    return StepResult(
        step_id=plan.step_id,
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs) if any(logprobs) else None,
        prompt_logprobs=tuple(prompt_logprobs) if any(prompt_logprobs) else None,
        pooled=tuple(pooled) if any(pooled) else None,
        failures=tuple(
            RequestFailure(engine_id=plan.grants[row].engine_id, message=error)
            for row, error in errors.items()
        ),
    )


def _make_matcher(grammars: Grammars | None, start: RequestStart) -> Matcher | None:
    """The matcher of a request's grammar, after the tokens that were generated before."""
    grammar = start.sampling_params.grammar
    if grammar is None:
        return None
    if grammars is None:
        return FailedMatcher(NO_BACKEND)
    return grammars.matcher(grammar, start.token_ids[start.num_prompt_tokens :])
