"""The sampling parameters of a step's rows as tensors. Steps with the same rows share them.

Shape suffixes: r sampled rows, g rows of a group, n entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import torch

from ...core.requests.sampling_params import SamplingParams
from ..state.request_state import RequestState
from ..state.token_counts import TokenCounts
from .filters import Filters
from .masks import GrammarRows
from .noise import Purpose
from .verification import FilteredRows, Trials


@dataclass(frozen=True, slots=True)
class Row:
    """One sampled row: the token after a request's known tokens and `num_drafts_before` drafts."""

    state: RequestState
    num_drafts_before: int

    @property
    def params(self) -> SamplingParams:
        return self.state.start.sampling_params

    def top_k(self, num_logits: int) -> int:
        """The number of tokens to keep: all of them if the request sets no top_k."""
        top_k = self.params.top_k
        return min(top_k, num_logits) if top_k > 0 else num_logits

    @property
    def num_generated_tokens(self) -> int:
        return self.state.num_generated_tokens + self.num_drafts_before

    @property
    def token_counts(self) -> TokenCounts:
        """The tokens seen before this row. The request must have penalties."""
        counts = self.state.token_counts
        assert counts is not None, "only rows with penalties are counted"
        return counts.after(self.state.draft_token_ids[: self.num_drafts_before])

    @property
    def forbidden(self) -> list[int]:
        """The tokens that would complete a bad word."""
        state = self.state
        words = state.start.bad_word_ids
        longest = max(map(len, words)) - 1
        begin = max(state.start.num_prompt_tokens, len(state.token_ids) - longest)
        last = [*state.token_ids[begin:], *state.draft_token_ids[: self.num_drafts_before]]
        return [word[-1] for word in words if last[len(last) - len(word) + 1 :] == [*word[:-1]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A group of the sampled rows."""

    index_g: torch.Tensor
    """int64, ascending."""
    are_all: bool

    def take(self, x_r: torch.Tensor) -> torch.Tensor:
        """Select these rows of a tensor; return the tensor itself if the group is all rows."""
        return x_r if self.are_all else x_r.index_select(0, self.index_g)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Rows whose tokens are drawn at random."""

    rows: Rows
    temperature_g1: torch.Tensor
    seeds_g: torch.Tensor
    filters: Filters | None
    """None if every token may be drawn."""
    unseeded: Sequence[tuple[int, int]]
    """The rows of requests without a seed: (index in the group, index in all rows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitBias:
    """All logit biases of the batch, as parallel columns: row, token, value."""

    rows_n: torch.Tensor
    token_ids_n: torch.Tensor
    values_n: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedTokens:
    """Rows that may sample only some tokens, and these tokens as parallel columns: row, token."""

    rows_g: torch.Tensor
    rows_n: torch.Tensor
    token_ids_n: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class NearBest:
    """Rows that draw only among logits near the largest one."""

    rows_g: torch.Tensor
    num_sigmas_g1: torch.Tensor
    """float64: the distance, in standard deviations of the row's logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Rows whose logits depend on the tokens before them."""

    indices: np.ndarray
    rows: Sequence[Row]
    repetition: np.ndarray
    presence: np.ndarray
    frequency: np.ndarray


class SamplingBatch:
    """The sampling parameters of all rows: one row per state, then one for each of its drafts."""

    def __init__(
        self,
        states: Sequence[RequestState],
        vocab_size: int,
        device: torch.device,
        *,
        are_drafts: bool = False,
    ) -> None:
        """`are_drafts`: the sampled tokens are drafts. For a request without a seed, drafts use
        noise of their own, independent of the noise that verifies them."""
        self._states = tuple(states)
        self._num_drafts = _count_drafts(states)
        self._have_probs = _find_probs(states)
        self._vocab_size = vocab_size
        self._device = device
        self._are_drafts = are_drafts
        rows = [Row(state, i) for state in states for i in range(len(state.draft_token_ids) + 1)]
        params = [row.params for row in rows]
        self.rows = rows
        self.tried = [i for i, row in enumerate(rows) if _is_tried(row)]
        """Rows with a draft that was drawn at random; the rows of one sequence are consecutive."""
        self.drawn = [i for i, p in enumerate(params) if not p.is_greedy and not _is_tried(rows[i])]
        """Rows whose tokens are drawn at random."""
        self.bias = _bias(params, device)
        self.penalties = _penalties(rows)
        self.grammars = GrammarRows(() if are_drafts else states)
        """Empty for drafts: a grammar cuts them after they are proposed."""
        self.min_tokens = [
            (i, row)
            for i, row in enumerate(rows)
            if params[i].min_tokens and (are_drafts or row.state.matcher is None)
        ]
        """Rows with a grammar are left out: `min_tokens` is part of their masks."""
        self.allowed = _allowed(params, device)
        self.bad_words = [(i, row) for i, row in enumerate(rows) if row.state.start.bad_word_ids]
        self.processed = [
            (i, row) for i, row in enumerate(rows) if row.state.start.logits_processors
        ]
        """Rows whose requests use logits processors."""
        self.masked = [
            i
            for i, row in enumerate(rows)
            if row.state.start.bad_word_ids
            or row.state.start.logits_processors
            or params[i].allowed_token_ids is not None
        ]
        """Rows that may be left without any token to sample."""
        self.near_best = _near_best(params, device)
        self.num_logprobs = {i: p.logprobs for i, p in enumerate(params) if p.logprobs is not None}
        """By row; rows without logprobs have no entry."""

    @cached_property
    def draws(self) -> Sequence[Draws]:
        """The drawn rows in up to two groups: without filters, then with filters."""
        params = {i: self.rows[i].params for i in self.drawn}
        filtered = [i for i in self.drawn if _is_filtered(params[i], self._vocab_size)]
        free = [i for i in self.drawn if not _is_filtered(params[i], self._vocab_size)]
        return tuple(
            self._make_draws(group, is_filtered=group is filtered)
            for group in (free, filtered)
            if group
        )

    @cached_property
    def trials(self) -> Trials | None:
        """The tried rows; None if there are none."""
        if not self.tried:
            return None
        return _trials(self.rows, self.tried, self._vocab_size, self._device)

    @property
    def draws_any(self) -> bool:
        """Whether any row needs random numbers."""
        return bool(self.drawn or self.tried)

    @property
    def adjusts(self) -> bool:
        """Whether any row's logits change before a token is chosen, without masks of grammars."""
        return (
            bool(self.min_tokens or self.masked or self.processed)
            or self.bias is not None
            or self.penalties is not None
        )

    def holds(self, states: Sequence[RequestState]) -> bool:
        """Whether this batch was made for the rows of these states, in this order."""
        return (
            self._states == tuple(states)
            and self._num_drafts == _count_drafts(states)
            and self._have_probs == _find_probs(states)
        )

    def seed_of(self, row: Row) -> int:
        """The seed of the noise that draws this row's token."""
        start = row.state.start
        is_apart = self._are_drafts and start.sampling_params.seed is None
        return start.seed ^ Purpose.DRAFT if is_apart else start.seed

    def _make_draws(self, group: Sequence[int], *, is_filtered: bool) -> Draws:
        rows, device = [self.rows[i] for i in group], self._device
        params = [row.params for row in rows]
        return Draws(
            rows=_rows(group, len(self.rows), device),
            temperature_g1=_column([p.temperature for p in params], torch.float32, device),
            seeds_g=_integers([self.seed_of(row) for row in rows], device),
            filters=_filters(rows, self._vocab_size, device) if is_filtered else None,
            unseeded=[(g, i) for g, i in enumerate(group) if params[g].seed is None],
        )


def _count_drafts(states: Sequence[RequestState]) -> list[int]:
    return [len(state.draft_token_ids) for state in states]


def _find_probs(states: Sequence[RequestState]) -> list[bool]:
    return [state.draft_probs_kv is not None for state in states]


def _is_tried(row: Row) -> bool:
    """Whether the row has a draft that was drawn at random; a sequence's last row has no draft."""
    num_drafts = len(row.state.draft_token_ids)
    return row.num_drafts_before < num_drafts and row.state.rejects_drafts


def _is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def _rows(rows: Sequence[int], num_rows: int, device: torch.device) -> Rows:
    return Rows(index_g=_integers(rows, device), are_all=len(rows) == num_rows)


def _trials(
    rows: Sequence[Row], tried: Sequence[int], vocab_size: int, device: torch.device
) -> Trials:
    params = [rows[i].params for i in tried]
    states = tried_states(rows, tried)
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
            filters=_filters([rows[tried[n]] for n in filtered], vocab_size, device),
        )
        if filtered
        else None,
    )


def tried_states(rows: Sequence[Row], tried: Sequence[int]) -> Sequence[RequestState]:
    """The states of the tried rows, each once, in the order of the rows."""
    return list(dict.fromkeys(rows[i].state for i in tried))


def _integers(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def _filters(rows: Sequence[Row], vocab_size: int, device: torch.device) -> Filters:
    params = [row.params for row in rows]
    top_p = [p.top_p if p.top_p < 1.0 else float("inf") for p in params]
    return Filters(
        min_p_r1=_column([p.min_p for p in params], torch.float32, device),
        top_k_r1=_column([row.top_k(vocab_size) for row in rows], torch.int64, device),
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


def _allowed(params: Sequence[SamplingParams], device: torch.device) -> AllowedTokens | None:
    ids = {i: p.allowed_token_ids for i, p in enumerate(params) if p.allowed_token_ids is not None}
    if not ids:
        return None
    rows = np.repeat(np.array(list(ids)), [len(one) for one in ids.values()])
    token_ids = np.fromiter(chain.from_iterable(ids.values()), np.int64)
    return AllowedTokens(
        rows_g=_integers(list(ids), device),
        rows_n=torch.from_numpy(rows).to(device, non_blocking=True),
        token_ids_n=torch.from_numpy(token_ids).to(device, non_blocking=True),
    )


def _near_best(params: Sequence[SamplingParams], device: torch.device) -> NearBest | None:
    found = {i: p.top_n_sigma for i, p in enumerate(params) if p.top_n_sigma and not p.is_greedy}
    if not found:
        return None
    return NearBest(
        rows_g=_integers(list(found), device),
        num_sigmas_g1=_column(list(found.values()), torch.float64, device),
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
