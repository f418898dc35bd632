"""Which drafts are accepted, so that what comes out is what would have come out without them.

Every row of a draft is first sampled like any other, with the drafts before it taken as accepted;
then a draft is accepted while it equals the token that was sampled before it. For greedy and seeded
requests this is what exactness means. For others it is rejection sampling (Leviathan et al., 2023;
Chen et al., 2023) of a certain draft: it is accepted with the probability p of the target, and
given that it was not, the token sampled is one of the others, in the proportions of p.

A draft model's drafts are not certain: drawn from q. For these the row's token is chosen by the
draft itself: with probability min(1, p / q) it is the draft, else one drawn from max(p - q, 0).

Shape suffixes: r sampled rows, n rows with a draft that was drawn, s sequences with such rows,
g filtered ones of the rows, v vocabulary.
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
    """Those of the n rows that have filters."""

    index_g: torch.Tensor
    filters: Filters


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Rows whose drafts are put to the test of both distributions; a sequence's rows stand one
    after the other."""

    states: Sequence[RequestState]
    rows_n: torch.Tensor
    """int64: which of the sampled rows."""
    sequence_n: torch.Tensor
    """int64: which of `states`."""
    last_s: torch.Tensor
    """int64: the last of the n rows of each sequence."""
    temperature_n1: torch.Tensor
    seeds_n: torch.Tensor
    filtered: FilteredRows | None


def try_drafts(
    logits_rv: torch.Tensor, trials: Trials, positions_r: torch.Tensor, token_ids_r: torch.Tensor
) -> None:
    """Fill in the tokens of the trials' rows: up to the first rejection the drafts, there another
    token than the draft; after it they mean nothing. Logits have been adjusted."""
    drafts_n, q_nv = _read_drafts(trials.states, logits_rv.device)
    p_nv = _target_probs(logits_rv, trials)
    positions_n = positions_r.index_select(0, trials.rows_n)
    is_accepted_n = _accept(p_nv, q_nv, drafts_n, trials, positions_n)
    token_ids_r[trials.rows_n] = drafts_n
    if not p_nv.is_cuda and is_accepted_n.all():  # to ask a GPU would make it wait
        return
    first_s, is_rejected_s = _first_rejected(is_accepted_n, trials)
    residual_sv = residual(
        p_nv.index_select(0, first_s), q_nv.index_select(0, first_s), drafts_n[first_s]
    )
    noise_s = uniform(trials.seeds_n[first_s], positions_n[first_s])
    others_s = draw(residual_sv, noise_s)
    token_ids_r[trials.rows_n[first_s]] = torch.where(is_rejected_s, others_s, drafts_n[first_s])


def residual(p_sv: torch.Tensor, q_sv: torch.Tensor, rejected_s: torch.Tensor) -> torch.Tensor:
    """What is left of p where q's part of it was refused: max(p - q, 0), not normalized."""
    left_sv = (p_sv - q_sv).clamp_(min=0)
    # The draft itself has nothing left. Where nothing has, p and q differ by rounding alone.
    rejected_s1 = rejected_s.unsqueeze(1)
    left_sv.scatter_(1, rejected_s1, 0.0)
    is_left_s1 = left_sv.amax(dim=1, keepdim=True) > 0
    if not left_sv.is_cuda and is_left_s1.all():
        return left_sv
    return torch.where(is_left_s1, left_sv, p_sv.scatter(1, rejected_s1, 0.0))


def count_accepted(draft_token_ids: Sequence[int], token_ids: Sequence[int]) -> int:
    """How many drafts equal the tokens of their rows, up to the first that does not."""
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
    """Per sequence the first of the n rows whose draft is rejected, and whether there is one; if
    not, its last row."""
    num_rows = len(is_accepted_n)
    place_n = torch.arange(num_rows, device=is_accepted_n.device)
    place_n = place_n.masked_fill_(is_accepted_n, num_rows)
    first_s = torch.full_like(trials.last_s, num_rows)
    first_s.scatter_reduce_(0, trials.sequence_n, place_n, "amin")
    return torch.minimum(first_s, trials.last_s), first_s < num_rows


def _target_probs(logits_rv: torch.Tensor, trials: Trials) -> torch.Tensor:
    """float32 [n, v]: what each row would be sampled from."""
    p_nv = logits_rv.index_select(0, trials.rows_n).div_(trials.temperature_n1).softmax(dim=1)
    if trials.filtered is not None:
        index_g = trials.filtered.index_g
        kept_gv = keep_filtered(p_nv.index_select(0, index_g), trials.filtered.filters)
        p_nv[index_g] = kept_gv.div_(kept_gv.sum(dim=1, keepdim=True))
    return p_nv


def _read_drafts(
    states: Sequence[RequestState], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draft tokens [n], and the distributions that they were drawn from [n, v]."""
    token_ids = [token_id for state in states for token_id in state.draft_token_ids]
    probs = [s.draft_probs_kv for s in states if s.draft_probs_kv is not None]
    assert len(probs) == len(states), "only drafts that were drawn are tried"
    q_nv = probs[0] if len(probs) == 1 else torch.cat(probs)
    return torch.tensor(token_ids, dtype=torch.int64).to(device, non_blocking=True), q_nv
