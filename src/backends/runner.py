"""Turns plans into tokens: the model's forward pass over one flat batch, then the sampler."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.plan import (
    BlockCopies,
    CopyDirection,
    Grant,
    RequestFailure,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from .attention.base import AttentionBackend
from .input_batch import InputBatch, build_input_batch
from .kv_cache import KVCache
from .models.decoder import Decoder
from .request_state import RequestState
from .sampler import Sampled, sample
from .sampling_batch import SamplingBatch

NOT_FINITE = "the model's output for this request was not a number; it cannot be continued"


class ModelRunner:
    """Keeps what plans do not repeat: each request's tokens, block table and sampling parameters."""

    def __init__(self, decoder: Decoder, attention: AttentionBackend, kv_cache: KVCache) -> None:
        self._decoder = decoder
        self._attention = attention
        self._kv_cache = kv_cache
        self._states: dict[str, RequestState] = {}
        self._sampling: SamplingBatch | None = None

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. If it raises, the plan's requests are lost and all others are unharmed."""
        states = self._take_in(plan)
        for copies in plan.copies:
            self._copy(copies)
        batch = build_input_batch(
            plan.grants, states, self._kv_cache.block_size, self._kv_cache.device
        )
        hidden_te = self._forward(batch)
        if not batch.sampled:
            return StepResult(step_id=plan.step_id, token_ids=((),) * len(plan.grants))
        rows = [batch.grant_order[i] for i in batch.sampled]
        sampled = self._sample(hidden_te, batch, [states[row] for row in rows])
        return _make_result(plan, rows, sampled, states)

    def _take_in(self, plan: StepPlan) -> list[RequestState]:
        """Requests that ended, started or grew; done before anything can fail on the device."""
        for request_id in plan.ended:
            self._states.pop(request_id, None)
        first = {grant.request_id: grant.start for grant in plan.grants} if plan.starts else {}
        for start in plan.starts:
            self._states[start.request_id] = RequestState(start, first[start.request_id])
        states = [self._states[grant.request_id] for grant in plan.grants]
        for grant, state in zip(plan.grants, states, strict=True):
            state.advance(grant, self._kv_cache.block_size)
        return states

    def _copy(self, copies: BlockCopies) -> None:
        cache = self._kv_cache
        out = copies.direction is CopyDirection.OUT
        for device_kv, host_kv in zip(cache.layers, cache.host_layers, strict=True):
            source, target = (device_kv, host_kv) if out else (host_kv, device_kv)
            self._attention.copy_blocks(source, target, copies.pairs)

    def _forward(self, batch: InputBatch) -> torch.Tensor:
        metadata = self._attention.build_metadata(batch.attention)
        layers = self._kv_cache.layers
        forward = self._attention.forward

        def attend(
            layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
        ) -> torch.Tensor:
            out_thd = torch.empty_like(q_thd, memory_format=torch.contiguous_format)
            forward(layer, q_thd, k_tkd, v_tkd, layers[layer], metadata, out_thd)
            return out_thd

        return self._decoder.forward(batch.token_ids_t, batch.positions_t, attend)

    def _sample(
        self, hidden_te: torch.Tensor, batch: InputBatch, states: Sequence[RequestState]
    ) -> Sampled:
        logits_rv = self._decoder.compute_logits(hidden_te.index_select(0, batch.last_rows_r))
        if self._sampling is None or not self._sampling.holds(states):
            self._sampling = SamplingBatch(states, logits_rv.shape[1], logits_rv.device)
        positions_r = batch.positions_t.index_select(0, batch.last_rows_r) + 1
        return sample(logits_rv, self._sampling, positions_r)


def _make_result(
    plan: StepPlan, rows: Sequence[int], sampled: Sampled, states: Sequence[RequestState]
) -> StepResult:
    """Back in the order of the plan's grants; `rows` says which grant each sampled row belongs to."""
    token_ids: list[tuple[int, ...]] = [()] * len(plan.grants)
    logprobs: list[tuple[TokenLogprobs, ...]] = [()] * len(plan.grants)
    failures = []
    for row, token_id, is_finite in zip(rows, sampled.token_ids, sampled.is_finite, strict=True):
        states[row].token_ids.append(token_id)
        token_ids[row] = (token_id,)
        if not is_finite:
            failures.append(_not_finite(plan.grants[row]))
    for row, found in zip(rows, sampled.logprobs or (), strict=False):
        logprobs[row] = () if found is None else (found,)
    return StepResult(
        step_id=plan.step_id,
        token_ids=tuple(token_ids),
        logprobs=None if sampled.logprobs is None else tuple(logprobs),
        failures=tuple(failures),
    )


def _not_finite(grant: Grant) -> RequestFailure:
    return RequestFailure(request_id=grant.request_id, message=NOT_FINITE)
