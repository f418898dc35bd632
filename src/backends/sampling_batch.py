"""The sampling parameters of a step's rows as tensors, kept as long as the rows stay the same.

Shape suffixes: r sampled rows, g rows of a group, n entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..core.sampling_params import SamplingParams
from .filters import Filters
from .request_state import RequestState
from .token_counts import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some of the sampled rows."""

    index_g: torch.Tensor
    """int64, ascending."""
    are_all: bool

    def take(self, x_r: torch.Tensor) -> torch.Tensor:
        """These rows of a tensor; itself when these are all."""
        return x_r if self.are_all else x_r.index_select(0, self.index_g)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Rows whose tokens are drawn."""

    rows: Rows
    temperature_g1: torch.Tensor
    seeds_g: torch.Tensor
    filters: Filters | None
    """None when every token may be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitBias:
    """All (row, token, value) of the batch."""

    rows_n: torch.Tensor
    token_ids_n: torch.Tensor
    values_n: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Rows whose logits depend on the tokens so far."""

    rows: np.ndarray
    counts: Sequence[TokenCounts]
    repetition: np.ndarray
    presence: np.ndarray
    frequency: np.ndarray


class SamplingBatch:
    """Everything that the sampler needs to know of its rows."""

    def __init__(
        self, states: Sequence[RequestState], vocab_size: int, device: torch.device
    ) -> None:
        self._states = tuple(states)
        params = [state.start.sampling_params for state in states]
        drawn = [i for i, p in enumerate(params) if not p.is_greedy]
        filtered = [i for i in drawn if _is_filtered(params[i], vocab_size)]
        free = [i for i in drawn if not _is_filtered(params[i], vocab_size)]
        self.draws = tuple(
            _draws(states, rows, vocab_size if rows is filtered else None, device)
            for rows in (free, filtered)
            if rows
        )
        self.bias = _bias(params, device)
        self.penalties = _penalties(self._states)
        self.min_tokens = [(i, s) for i, s in enumerate(states) if params[i].min_tokens]
        self.num_logprobs = {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
        """By row, for those that asked."""

    @property
    def adjusts(self) -> bool:
        """Whether any row's logits change before a token is chosen."""
        return bool(self.min_tokens) or self.bias is not None or self.penalties is not None

    def holds(self, states: Sequence[RequestState]) -> bool:
        """True if this batch was made for these very rows, in this order."""
        return self._states == tuple(states)


def _is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def _rows(rows: Sequence[int], num_rows: int, device: torch.device) -> Rows:
    index_g = torch.tensor(rows, dtype=torch.int64, device=device)
    return Rows(index_g=index_g, are_all=len(rows) == num_rows)


def _draws(
    states: Sequence[RequestState],
    rows: Sequence[int],
    filtered_vocab_size: int | None,
    device: torch.device,
) -> Draws:
    starts = [states[i].start for i in rows]
    params = [start.sampling_params for start in starts]
    return Draws(
        rows=_rows(rows, len(states), device),
        temperature_g1=_column([p.temperature for p in params], torch.float32, device),
        seeds_g=torch.tensor([start.seed for start in starts], dtype=torch.int64, device=device),
        filters=_filters(params, filtered_vocab_size, device) if filtered_vocab_size else None,
    )


def _filters(params: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> Filters:
    top_k = [min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params]
    top_p = [p.top_p if p.top_p < 1.0 else float("inf") for p in params]
    return Filters(
        min_p_r1=_column([p.min_p for p in params], torch.float32, device),
        top_k_r1=_column(top_k, torch.int64, device),
        top_p_r1=_column(top_p, torch.float64, device),
    )


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)


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
        rows_n=torch.tensor(rows, dtype=torch.int64, device=device),
        token_ids_n=torch.tensor(token_ids, dtype=torch.int64, device=device),
        values_n=torch.tensor(values, dtype=torch.float32, device=device),
    )


def _penalties(states: Sequence[RequestState]) -> Penalties | None:
    counted = [(i, s.token_counts) for i, s in enumerate(states) if s.token_counts is not None]
    if not counted:
        return None
    params = [states[i].start.sampling_params for i, _ in counted]

    def column(value: Callable[[SamplingParams], float]) -> np.ndarray:
        return np.array([value(p) for p in params], dtype=np.float32)

    return Penalties(
        rows=np.array([i for i, _ in counted]),
        counts=[counts for _, counts in counted],
        repetition=column(lambda p: p.repetition_penalty),
        presence=column(lambda p: p.presence_penalty),
        frequency=column(lambda p: p.frequency_penalty),
    )
