"""Verification of drafts: the output is distributed as it would be without speculation.

Every row is first sampled like any other, as if the drafts before it were accepted. A draft is
accepted while it equals the token sampled in its row. For greedy and seeded requests this makes
the output exactly that of a run without drafts. For other requests it is rejection sampling
(Leviathan et al., 2023; Chen et al., 2023) of a deterministic draft: the draft is accepted with its
probability under the target distribution p, and otherwise another token is drawn in proportion to
p.

A draft model may draw its drafts at random, from q. Then the row's token depends on the draft: it
is the draft with probability min(1, p / q), else a token drawn from max(p - q, 0).

Shape suffixes: r sampled rows, n rows with a draft that was drawn, s sequences with such rows,
g rows with filters, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..state.request_state import RequestState
from .drawing import draw, keep_filtered
from .filters import Filters
from .noise import Purpose, uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredRows:
    """The rows with filters, as indices of the n rows, and their filters."""

    index_g: torch.Tensor
    filters: Filters


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Rows whose drafts are accepted or rejected at random; the rows of one sequence are
    consecutive."""

    states: Sequence[RequestState]
    rows_n: torch.Tensor
    """int64: indices of the sampled rows."""
    sequence_n: torch.Tensor
    """int64: indices of `states`."""
    last_s: torch.Tensor
    """int64: the index, among the n rows, of each sequence's last row."""
    temperature_n1: torch.Tensor
    seeds_n: torch.Tensor
    filtered: FilteredRows | None


def try_drafts(
    logits_rv: torch.Tensor, trials: Trials, positions_r: torch.Tensor, token_ids_r: torch.Tensor
) -> None:
    """Write the tokens of the trials' rows to `token_ids_r`. Logits are already adjusted.

    Up to the first rejection these are the drafts; at the rejection it is another token; after it
    they are meaningless.
    """
    drafts_n, q_nv = _read_drafts(trials.states, logits_rv.device)
    p_nv = _target_probs(logits_rv, trials)
    positions_n = positions_r.index_select(0, trials.rows_n)
    is_accepted_n = _accept(p_nv, q_nv, drafts_n, trials, positions_n)
    token_ids_r[trials.rows_n] = drafts_n
    if not p_nv.is_cuda and is_accepted_n.all():  # reading the result would stall a GPU
        return
    first_s, is_rejected_s = _first_rejected(is_accepted_n, trials)
    residual_sv = residual(
        p_nv.index_select(0, first_s), q_nv.index_select(0, first_s), drafts_n[first_s]
    )
    noise_s = uniform(trials.seeds_n[first_s], positions_n[first_s])
    others_s = draw(residual_sv, noise_s)
    token_ids_r[trials.rows_n[first_s]] = torch.where(is_rejected_s, others_s, drafts_n[first_s])


def residual(p_sv: torch.Tensor, q_sv: torch.Tensor, rejected_s: torch.Tensor) -> torch.Tensor:
    """The distribution that replaces a rejected draft: max(p - q, 0), not normalized."""
    left_sv = (p_sv - q_sv).clamp_(min=0)
    # The draft itself must not be drawn again. If no token is left, p and q differ only by
    # rounding: then p without the draft is used.
    rejected_s1 = rejected_s.unsqueeze(1)
    left_sv.scatter_(1, rejected_s1, 0.0)
    is_left_s1 = left_sv.amax(dim=1, keepdim=True) > 0
    if not left_sv.is_cuda and is_left_s1.all():
        return left_sv
    return torch.where(is_left_s1, left_sv, p_sv.scatter(1, rejected_s1, 0.0))


def count_accepted(draft_token_ids: Sequence[int], token_ids: Sequence[int]) -> int:
    """The number of drafts before the first one that differs from its row's token."""
    for i, draft in enumerate(draft_token_ids):
        if draft != token_ids[i]:
            return i
    return len(draft_token_ids)


def _accept(
    p_nv: torch.Tensor,
    q_nv: torch.Tensor,
    drafts_n: torch.Tensor,
    trials: Trials,
    positions_n: torch.Tensor,
) -> torch.Tensor:
    drafts_n1 = drafts_n.unsqueeze(1)
    p_n, q_n = (x_nv.gather(1, drafts_n1).squeeze(1).double() for x_nv in (p_nv, q_nv))
    return uniform(trials.seeds_n, positions_n, Purpose.ACCEPT) * q_n < p_n


def _first_rejected(
    is_accepted_n: torch.Tensor, trials: Trials
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per sequence: the first of the n rows with a rejected draft, or the last row if
    none was rejected; and whether one was."""
    num_rows = len(is_accepted_n)
    place_n = torch.arange(num_rows, device=is_accepted_n.device)
    place_n = place_n.masked_fill_(is_accepted_n, num_rows)
    first_s = torch.full_like(trials.last_s, num_rows)
    first_s.scatter_reduce_(0, trials.sequence_n, place_n, "amin")
    return torch.minimum(first_s, trials.last_s), first_s < num_rows


def _target_probs(logits_rv: torch.Tensor, trials: Trials) -> torch.Tensor:
    """float32 [n, v]: the distribution that each row would be sampled from without a draft."""
    p_nv = logits_rv.index_select(0, trials.rows_n).div_(trials.temperature_n1).softmax(dim=1)
    if trials.filtered is not None:
        index_g = trials.filtered.index_g
        kept_gv = keep_filtered(p_nv.index_select(0, index_g), trials.filtered.filters)
        p_nv[index_g] = kept_gv.div_(kept_gv.sum(dim=1, keepdim=True))
    return p_nv


def _read_drafts(
    states: Sequence[RequestState], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The draft tokens [n], and the distributions that they were drawn from [n, v]."""
    token_ids = [token_id for state in states for token_id in state.draft_token_ids]
    probs = [s.draft_probs_kv for s in states if s.draft_probs_kv is not None]
    assert len(probs) == len(states), "only drafts that were drawn are tried"
    q_nv = probs[0] if len(probs) == 1 else torch.cat(probs)
    return torch.tensor(token_ids, dtype=torch.int64).to(device, non_blocking=True), q_nv
