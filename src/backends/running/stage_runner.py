"""Computes plans in a stage that is not the last one of a model.

Shape suffixes: t tokens, e hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ...core.plan import Grant, StepPlan, StepResult
from ...core.requests.media import MediaItem
from ..attention.base import AttentionBackend
from ..models.base import Model
from ..state.input_batch import InputBatch, build_input_batch
from ..state.kv_cache import KVCache, copy_blocks
from ..state.request_state import RequestState
from .image_model import ImageModel
from .layered_model import LayeredModel
from .request_states import RequestStates


class StageModel(Protocol):
    """A stage that computes a whole step in one call."""

    def forward(self, batch: InputBatch) -> torch.Tensor:
        """Compute the hidden states [t, e] of all tokens, and hand them to the next stage."""
        ...


class StageRunner:
    """Runs plans up to the hidden states, which the model itself hands to the next stage.

    The last stage samples. A request of a plan is in no other plan before `settle` has its tokens.
    """

    def __init__(
        self,
        decoder: Model,
        attention: AttentionBackend,
        kv_cache: KVCache,
        model: StageModel | None = None,
        images: ImageModel | None = None,
    ) -> None:
        """`model` computes whole steps of the stage; None runs it layer by layer. `images` computes
        the steps that have some, if this is the first stage."""
        self._model = model or LayeredModel(decoder, attention, kv_cache)
        self._images = images
        self._attention = attention
        self._kv_cache = kv_cache
        self._requests = RequestStates(decoder.config.vocab_size, kv_cache)
        self._open: dict[int, Sequence[tuple[int, Grant, RequestState]]] = {}
        """Rows, grants and states of the steps without a result, by step id."""

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step; its result has no tokens. If it raises, its requests are lost."""
        self._requests.forget(plan)
        if plan.media is not None and self._images is not None:
            self._images.forget(plan.media)
        rows = self._requests.rows(plan)
        try:
            self._compute(plan, rows)
        except BaseException:
            self._requests.lose(plan.grants)
            raise
        return StepResult(
            step_id=plan.step_id,
            token_ids=((),) * len(plan.grants),
            encoder_seconds=self._images.seconds if plan.media and self._images else 0.0,
        )

    def take_media(self, items: Sequence[MediaItem]) -> None:
        """Keep the pixels of a request's images. Called from any thread."""
        if self._images is not None:
            self._images.take(items)

    def settle(self, result: StepResult) -> None:
        """Append the tokens that the last stage sampled, and keep its drafts for the next plan."""
        for step_id in [step_id for step_id in self._open if step_id < result.step_id]:
            del self._open[step_id]  # it raised in a later stage
        drafts = result.proposed_token_ids
        for row, grant, state in self._open.pop(result.step_id, ()):
            if not result.token_ids[row]:
                continue  # inside a prompt, or the request failed
            state.settle(result.token_ids[row])
            if drafts is not None:
                state.draft_token_ids = drafts[row]
            if grant.gives_back:
                state.give_back(self._kv_cache.block_size)

    def _compute(self, plan: StepPlan, rows: Sequence[int]) -> None:
        states = self._requests.take_in(plan, rows)
        for copies in plan.copies:
            copy_blocks(self._kv_cache, self._attention, copies)
        if plan.media is not None and self._images is not None:
            self._images.encode(plan.media)
        if not rows:
            return
        grants, cache = [plan.grants[row] for row in rows], self._kv_cache
        batch = build_input_batch(grants, states, cache.block_size, cache.device)
        if self._images is not None and (step := self._images.step(batch, grants, states)):
            self._images.forward(step)
        else:
            self._model.forward(batch)
        self._open[plan.step_id] = list(zip(rows, grants, states, strict=True))
