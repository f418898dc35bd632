"""The sampling parameters of a step's rows as tensors, kept as long as the same requests are sampled.

Shape suffixes: r sampled rows, v vocabulary, p rows with penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..core.sampling_params import SamplingParams
from .request_state import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Rows whose logits depend on the tokens so far; counts are kept up to date step by step."""

    rows_p: torch.Tensor
    repetition_p1: torch.Tensor
    presence_p1: torch.Tensor
    frequency_p1: torch.Tensor
    output_counts_pv: torch.Tensor
    """How often each token was generated."""
    is_in_prompt_pv: torch.Tensor

    def count(self, token_ids_r: torch.Tensor) -> None:
        """Take in the tokens that were sampled for all rows of the batch."""
        tokens_p1 = token_ids_r.index_select(0, self.rows_p).unsqueeze(1)
        self.output_counts_pv.scatter_add_(
            1, tokens_p1, torch.ones_like(tokens_p1, dtype=self.output_counts_pv.dtype)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitBias:
    """All (row, token, value) of the batch."""

    rows: torch.Tensor
    token_ids: torch.Tensor
    values: torch.Tensor


class SamplingBatch:
    """Everything that the sampler needs to know of its rows."""

    def __init__(
        self, states: Sequence[RequestState], vocab_size: int, device: torch.device
    ) -> None:
        self.states = tuple(states)
        params = [state.start.sampling_params for state in states]
        self.all_greedy = all(p.is_greedy for p in params)
        self.is_greedy_r = torch.tensor([p.is_greedy for p in params], device=device)
        self.temperature_r1 = _column(
            [1.0 if p.is_greedy else p.temperature for p in params], device
        )
        self.seeds_r = torch.tensor([state.start.seed for state in states], device=device)
        self.min_p_r1 = (
            _column([p.min_p for p in params], device) if any(p.min_p for p in params) else None
        )
        self.filtered = [i for i, p in enumerate(params) if _is_filtered(p, vocab_size)]
        self.filtered_rows = torch.tensor(self.filtered, dtype=torch.int64, device=device)
        top_k = [p.top_k if p.top_k > 0 else vocab_size for p in params]
        self.top_k_f1 = torch.tensor(
            [[min(top_k[i], vocab_size)] for i in self.filtered], dtype=torch.int64, device=device
        )
        self.top_p_f1 = _column([params[i].top_p for i in self.filtered], device)
        self.num_logprobs = [p.logprobs for p in params]
        self.wants_logprobs = any(n is not None for n in self.num_logprobs)
        self.has_min_tokens = any(p.min_tokens for p in params)
        self.penalties = _penalties(self.states, vocab_size, device)
        self.bias = _bias(params, device)

    def holds(self, states: Sequence[RequestState]) -> bool:
        """True if this batch was made for these very rows, in this order."""
        mine = self.states
        return len(mine) == len(states) and all(a is b for a, b in zip(mine, states, strict=True))


def _is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    return not params.is_greedy and (0 < params.top_k < vocab_size or params.top_p < 1.0)


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)


def _penalties(
    states: Sequence[RequestState], vocab_size: int, device: torch.device
) -> Penalties | None:
    rows = [i for i, state in enumerate(states) if _is_penalized(state.start.sampling_params)]
    if not rows:
        return None
    params = [states[i].start.sampling_params for i in rows]
    prompt_pv = torch.zeros(len(rows), vocab_size, dtype=torch.bool)
    counts_pv = torch.zeros(len(rows), vocab_size, dtype=torch.float32)
    for place, i in enumerate(rows):
        num_prompt_tokens = states[i].start.num_prompt_tokens
        tokens = torch.tensor(states[i].token_ids)
        prompt_pv[place, tokens[:num_prompt_tokens]] = True
        counts_pv[place] = tokens[num_prompt_tokens:].bincount(minlength=vocab_size)
    return Penalties(
        rows_p=torch.tensor(rows, device=device),
        repetition_p1=_column([p.repetition_penalty for p in params], device),
        presence_p1=_column([p.presence_penalty for p in params], device),
        frequency_p1=_column([p.frequency_penalty for p in params], device),
        output_counts_pv=counts_pv.to(device),
        is_in_prompt_pv=prompt_pv.to(device),
    )


def _is_penalized(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _bias(params: Sequence[SamplingParams], device: torch.device) -> LogitBias | None:
    entries = [
        (row, token_id, value)
        for row, p in enumerate(params)
        for token_id, value in (p.logit_bias or {}).items()
    ]
    if not entries:
        return None
    rows, token_ids, values = zip(*entries, strict=True)
    return LogitBias(
        rows=torch.tensor(rows, device=device),
        token_ids=torch.tensor(token_ids, device=device),
        values=torch.tensor(values, dtype=torch.float32, device=device),
    )
