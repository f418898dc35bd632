"""From logits to tokens, for all rows at once.

Order: raw logits give the log-probabilities; then bias, min_tokens, penalties, temperature, min_p,
top_k and top_p; then the draw. A row's result depends on its own logits, parameters, seed and
position alone, never on its neighbours.

Shape suffixes: r sampled rows, v vocabulary, f rows with top_k or top_p.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.plan import TokenLogprobs
from .noise import uniform
from .sampling_batch import LogitBias, Penalties, SamplingBatch

_FIRST_GUESS = 1024
"""So many of the most likely tokens nearly always hold top_p's mass; if not, all are sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What came out, per row."""

    token_ids: list[int]
    is_finite: list[bool]
    """False where the logits held NaN or infinity: the token means nothing there."""
    logprobs: list[TokenLogprobs | None] | None


def sample(logits_rv: torch.Tensor, batch: SamplingBatch, positions_r: torch.Tensor) -> Sampled:
    """Sample one token per row. Logits are float32 and may be overwritten; positions are those of
    the tokens to be sampled, int64."""
    is_finite_r = logits_rv.sum(dim=1).isfinite()
    raw_rv = logits_rv.clone() if batch.wants_logprobs else logits_rv
    _adjust(logits_rv, batch)
    token_ids_r = logits_rv.argmax(dim=1)
    if not batch.all_greedy:
        drawn_r = _draw(_probabilities(logits_rv, batch), uniform(batch.seeds_r, positions_r))
        token_ids_r = torch.where(batch.is_greedy_r, token_ids_r, drawn_r)
    if batch.penalties is not None:
        batch.penalties.count(token_ids_r)
    logprobs = _logprobs(raw_rv, token_ids_r, batch) if batch.wants_logprobs else None
    return Sampled(
        token_ids=token_ids_r.tolist(), is_finite=is_finite_r.tolist(), logprobs=logprobs
    )


def _adjust(logits_rv: torch.Tensor, batch: SamplingBatch) -> None:
    if batch.bias is not None:
        _add_bias(logits_rv, batch.bias)
    if batch.has_min_tokens:
        _forbid_early_stops(logits_rv, batch)
    if batch.penalties is not None:
        _penalize(logits_rv, batch.penalties)


def _add_bias(logits_rv: torch.Tensor, bias: LogitBias) -> None:
    logits_rv.index_put_((bias.rows, bias.token_ids), bias.values, accumulate=True)


def _forbid_early_stops(logits_rv: torch.Tensor, batch: SamplingBatch) -> None:
    for row, state in enumerate(batch.states):
        start = state.start
        # The token that is sampled now is number num_generated + 1, and may be the last from
        # min_tokens on.
        if (
            state.num_generated_tokens + 1 < start.sampling_params.min_tokens
            and start.stop_token_ids
        ):
            logits_rv[row, list(start.stop_token_ids)] = -torch.inf


def _penalize(logits_rv: torch.Tensor, penalties: Penalties) -> None:
    """Repetition as in Keskar et al., 2019 (CTRL); presence and frequency as in the OpenAI API."""
    logits_pv = logits_rv.index_select(0, penalties.rows_p)
    counts_pv = penalties.output_counts_pv
    was_generated_pv = counts_pv > 0
    factor_pv = torch.where(
        was_generated_pv | penalties.is_in_prompt_pv, penalties.repetition_p1, 1.0
    )
    logits_pv = torch.where(logits_pv > 0, logits_pv / factor_pv, logits_pv * factor_pv)
    logits_pv -= penalties.frequency_p1 * counts_pv
    logits_pv -= penalties.presence_p1 * was_generated_pv
    logits_rv.index_copy_(0, penalties.rows_p, logits_pv)


def _probabilities(logits_rv: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Unnormalized probabilities [r, v]; a token that was filtered out has exactly 0."""
    probs_rv = (logits_rv / batch.temperature_r1).softmax(dim=1)
    if batch.min_p_r1 is not None:
        floor_r1 = probs_rv.amax(dim=1, keepdim=True) * batch.min_p_r1
        probs_rv = probs_rv.masked_fill_(probs_rv < floor_r1, 0.0)
    if batch.filtered:
        probs_fv = probs_rv.index_select(0, batch.filtered_rows)
        threshold_f1 = _threshold(probs_fv, batch.top_k_f1, batch.top_p_f1)
        probs_fv.masked_fill_(probs_fv < threshold_f1, 0.0)
        probs_rv.index_copy_(0, batch.filtered_rows, probs_fv)
    return probs_rv


def _threshold(
    probs_fv: torch.Tensor, top_k_f1: torch.Tensor, top_p_f1: torch.Tensor
) -> torch.Tensor:
    """The least probability that top_k, then top_p of what that leaves, keep.

    A threshold on the value keeps all of several equally likely tokens at the edge, so the result
    does not depend on how ties are sorted, nor on how many tokens were sorted.
    """
    vocab_size = probs_fv.shape[1]
    for num_sorted in (min(_FIRST_GUESS, vocab_size), vocab_size):
        best_fs = probs_fv.topk(num_sorted, dim=1).values
        place_f1 = top_k_f1.clamp(max=num_sorted) - 1
        kth_f1 = best_fs.gather(1, place_f1)
        is_whole_f1 = top_k_f1 >= vocab_size
        kept_fv = probs_fv.double() * (is_whole_f1 | (probs_fv >= kth_f1))
        total_f1 = kept_fv.sum(dim=1, keepdim=True)
        before_fs = best_fs.double().cumsum(dim=1) - best_fs
        is_kept_fs = before_fs < top_p_f1 * total_f1
        is_kept_fs[:, 0] = True
        # Enough were sorted if the k-th is among them, or the last one is already beyond top_p.
        is_enough = (top_k_f1 <= num_sorted) | ~is_kept_fs[:, -1:]
        if num_sorted == vocab_size or bool(is_enough.all()):
            break
    last_f1 = is_kept_fs.sum(dim=1, keepdim=True) - 1
    nucleus_f1 = best_fs.gather(1, last_f1)
    return torch.where(is_whole_f1, nucleus_f1, torch.maximum(nucleus_f1, kth_f1))


def _draw(probs_rv: torch.Tensor, uniform_r: torch.Tensor) -> torch.Tensor:
    """Inverse of the cumulative distribution; a token of probability 0 is never drawn."""
    cumulative_rv = probs_rv.cumsum(dim=1, dtype=torch.float64)
    total_r1 = cumulative_rv[:, -1:]
    below_total_r1 = torch.nextafter(total_r1, torch.zeros_like(total_r1))
    target_r1 = torch.minimum(uniform_r.unsqueeze(1) * total_r1, below_total_r1)
    # right=True: the first token whose cumulative probability exceeds the target.
    return (
        torch.searchsorted(cumulative_rv, target_r1, right=True)
        .squeeze(1)
        .clamp_(
            max=probs_rv.shape[1] - 1  # NaN rows only; they are reported as not finite
        )
    )


def _logprobs(
    raw_rv: torch.Tensor, token_ids_r: torch.Tensor, batch: SamplingBatch
) -> list[TokenLogprobs | None]:
    rows = [i for i, n in enumerate(batch.num_logprobs) if n is not None]
    index = torch.tensor(rows, device=raw_rv.device)
    logprobs_nv = raw_rv.index_select(0, index).log_softmax(dim=1)
    chosen_n1 = token_ids_r.index_select(0, index).unsqueeze(1)
    value_n1 = logprobs_nv.gather(1, chosen_n1)
    ranks = ((logprobs_nv > value_n1).sum(dim=1) + 1).tolist()
    most = max(batch.num_logprobs[i] or 0 for i in rows)
    top = logprobs_nv.topk(min(most, logprobs_nv.shape[1]), dim=1)
    values, ids = top.values.tolist(), top.indices.tolist()
    found: list[TokenLogprobs | None] = [None] * len(batch.num_logprobs)
    for place, i in enumerate(rows):
        count = batch.num_logprobs[i] or 0
        found[i] = TokenLogprobs(
            token_id=int(chosen_n1[place]),
            logprob=float(value_n1[place]),
            rank=ranks[place],
            top=tuple(zip(ids[place][:count], values[place][:count], strict=True)),
        )
    return found
