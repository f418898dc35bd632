"""The sampling parameters of a step's rows as tensors, kept as long as the rows stay the same.

Shape suffixes: r sampled rows, g rows of a group, n entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from ..core.sampling_params import SamplingParams
from .filters import Filters
from .request_state import RequestState
from .token_counts import TokenCounts
from .verification import FilteredRows, Trials


@dataclass(frozen=True, slots=True)
class Row:
    """One sampled row: what comes after a request's known tokens and so many of its drafts."""

    state: RequestState
    num_drafts_before: int

    @property
    def params(self) -> SamplingParams:
        return self.state.start.sampling_params

    @property
    def num_generated_tokens(self) -> int:
        return self.state.num_generated_tokens + self.num_drafts_before

    @property
    def token_counts(self) -> TokenCounts:
        """Of a request with penalties."""
        counts = self.state.token_counts
        assert counts is not None, "only rows with penalties are counted"
        return counts.after(self.state.draft_token_ids[: self.num_drafts_before])


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

    indices: np.ndarray
    rows: Sequence[Row]
    repetition: np.ndarray
    presence: np.ndarray
    frequency: np.ndarray


class SamplingBatch:
    """Everything that the sampler needs to know of its rows: one per state, and after it one for
    each draft that the state verifies."""

    def __init__(
        self, states: Sequence[RequestState], vocab_size: int, device: torch.device
    ) -> None:
        self._states = tuple(states)
        self._num_drafts = _count_drafts(states)
        self._have_probs = _find_probs(states)
        rows = [Row(state, i) for state in states for i in range(len(state.draft_token_ids) + 1)]
        params = [row.params for row in rows]
        tried = [i for i, row in enumerate(rows) if _is_tried(row)]
        drawn = [i for i, p in enumerate(params) if not p.is_greedy and not _is_tried(rows[i])]
        filtered = [i for i in drawn if _is_filtered(params[i], vocab_size)]
        free = [i for i in drawn if not _is_filtered(params[i], vocab_size)]
        self.draws = tuple(
            _draws(rows, group, vocab_size if group is filtered else None, device)
            for group in (free, filtered)
            if group
        )
        self.trials = _trials(rows, tried, vocab_size, device) if tried else None
        """Rows whose drafts were drawn at random."""
        self.bias = _bias(params, device)
        self.penalties = _penalties(rows)
        self.min_tokens = [(i, row) for i, row in enumerate(rows) if params[i].min_tokens]
        self.num_logprobs = {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
        """By row, for those that asked."""

    @property
    def adjusts(self) -> bool:
        """Whether any row's logits change before a token is chosen. What else forbids tokens, a
        grammar's masks, would do so there."""
        return bool(self.min_tokens) or self.bias is not None or self.penalties is not None

    def holds(self, states: Sequence[RequestState]) -> bool:
        """True if this batch was made for these very rows, in this order."""
        return (
            self._states == tuple(states)
            and self._num_drafts == _count_drafts(states)
            and self._have_probs == _find_probs(states)
        )


def _count_drafts(states: Sequence[RequestState]) -> list[int]:
    return [len(state.draft_token_ids) for state in states]


def _find_probs(states: Sequence[RequestState]) -> list[bool]:
    return [state.draft_probs_kv is not None for state in states]


def _is_tried(row: Row) -> bool:
    """The last row of a sequence has no draft."""
    num_drafts = len(row.state.draft_token_ids)
    return row.num_drafts_before < num_drafts and row.state.rejects_drafts


def _is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def _rows(rows: Sequence[int], num_rows: int, device: torch.device) -> Rows:
    return Rows(index_g=_integers(rows, device), are_all=len(rows) == num_rows)


def _draws(
    rows: Sequence[Row],
    group: Sequence[int],
    filtered_vocab_size: int | None,
    device: torch.device,
) -> Draws:
    starts = [rows[i].state.start for i in group]
    params = [start.sampling_params for start in starts]
    return Draws(
        rows=_rows(group, len(rows), device),
        temperature_g1=_column([p.temperature for p in params], torch.float32, device),
        seeds_g=_integers([start.seed for start in starts], device),
        filters=_filters(params, filtered_vocab_size, device) if filtered_vocab_size else None,
    )


def _trials(
    rows: Sequence[Row], tried: Sequence[int], vocab_size: int, device: torch.device
) -> Trials:
    params = [rows[i].params for i in tried]
    states = list(dict.fromkeys(rows[i].state for i in tried))
    counts = [len(state.draft_token_ids) for state in states]
    filtered = [n for n, p in enumerate(params) if _is_filtered(p, vocab_size)]
    return Trials(
        states=states,
        rows_n=_integers(tried, device),
        sequence_n=_integers(np.repeat(np.arange(len(states)), counts).tolist(), device),
        last_s=_integers([end - 1 for end in accumulate(counts)], device),
        temperature_n1=_column([p.temperature for p in params], torch.float32, device),
        seeds_n=_integers([rows[i].state.start.seed for i in tried], device),
        filtered=FilteredRows(
            index_g=_integers(filtered, device),
            filters=_filters([params[n] for n in filtered], vocab_size, device),
        )
        if filtered
        else None,
    )


def _integers(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


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
        rows_n=_integers(rows, device),
        token_ids_n=_integers(token_ids, device),
        values_n=torch.tensor(values, dtype=torch.float32, device=device),
    )


def _penalties(rows: Sequence[Row]) -> Penalties | None:
    indices = [i for i, row in enumerate(rows) if row.state.token_counts is not None]
    if not indices:
        return None
    params = [rows[i].params for i in indices]

    def column(value: Callable[[SamplingParams], float]) -> np.ndarray:
        return np.array([value(p) for p in params], dtype=np.float32)

    return Penalties(
        indices=np.array(indices),
        rows=[rows[i] for i in indices],
        repetition=column(lambda p: p.repetition_penalty),
        presence=column(lambda p: p.presence_penalty),
        frequency=column(lambda p: p.frequency_penalty),
    )
