"""From logits to tokens, for all rows at once.

Order: raw logits give the log-probabilities; then bias, penalties, logits processors, min_tokens,
allowed tokens, bad words, masks of grammars, top_n_sigma, temperature, min_p, top_k and top_p; then
the draw. A row's result depends only on its own logits, parameters, seed and position, never on
other rows. A sequence with drafts has one more row for each draft; that row is sampled as if the
drafts before it were accepted.

Shape suffixes: r sampled rows, v vocabulary, l rows with logprobs, n entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ...core.plan import TokenLogprobs
from .batch import AllowedTokens, LogitBias, Penalties, Row, SamplingBatch
from .logprobs import describe, logprobs_of
from .masks import RowMasks
from .ops import RowsToDraw, SamplingOps
from .processing.calling import LogitsProcessing

NO_TOKEN_LEFT = (
    "allowed_token_ids, bad_words, logits processors and the grammar together leave no token that "
    "this request may generate"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The sampled tokens, per row."""

    token_ids: list[int]
    is_finite: list[bool]
    """False if the logits held NaN or infinity: then the token is meaningless."""
    failures: dict[int, str]
    """By row, only for rows that failed: why no token could be sampled."""
    logprobs: dict[int, TokenLogprobs]
    """By row; rows without logprobs have no entry."""


def sample(
    logits_rv: torch.Tensor,
    batch: SamplingBatch,
    positions_r: torch.Tensor,
    ops: SamplingOps,
    processing: LogitsProcessing | None = None,
    masks: RowMasks | None = None,
) -> Sampled:
    """Sample one token per row. Logits are float32 and are overwritten; `positions_r`, int64, are
    the positions of the tokens to sample. `masks` are those of the rows with a grammar."""
    reading = ops.read_logits(logits_rv)
    logprobs_lv = _raw_logprobs(logits_rv, batch) if batch.num_logprobs else None
    best_r = reading.best_r
    failures: dict[int, str] = {}
    if batch.adjusts or masks is not None:
        failures = adjust_logits(logits_rv, batch, processing)
        if masks is not None:
            ops.mask(logits_rv, masks)
        best_r = ops.read_logits(logits_rv).best_r
    exhausted = find_exhausted(logits_rv, best_r, batch)
    keep_near_best(logits_rv, batch)
    token_ids_r = best_r  # right for greedy rows; `draw` overwrites the others
    if batch.draws_any:
        ops.draw(
            RowsToDraw(
                logits_rv=logits_rv, batch=batch, positions_r=positions_r, token_ids_r=token_ids_r
            )
        )
    return Sampled(
        token_ids=token_ids_r.tolist(),
        is_finite=reading.is_finite_r.tolist(),
        failures=dict.fromkeys(exhausted, NO_TOKEN_LEFT) | failures,
        logprobs={} if logprobs_lv is None else _describe(logprobs_lv, token_ids_r, batch),
    )


def adjust_logits(
    logits_rv: torch.Tensor, batch: SamplingBatch, processing: LogitsProcessing | None = None
) -> dict[int, str]:
    """Apply bias, penalties, logits processors and masks, in place.

    Returns the failures of logits processors, by row. Without `processing` none is called.
    """
    failures: dict[int, str] = {}
    if batch.bias is not None:
        _add_bias(logits_rv, batch.bias)
    if batch.penalties is not None:
        _penalize(logits_rv, batch.penalties)
    if batch.processed and processing is not None:
        failures = processing.apply(logits_rv, batch.processed)
    if batch.min_tokens:
        _forbid_early_stops(logits_rv, batch.min_tokens)
    if batch.allowed is not None:
        _keep_allowed(logits_rv, batch.allowed)
    if batch.bad_words:
        _forbid_bad_words(logits_rv, batch.bad_words)
    return failures


def find_exhausted(
    logits_rv: torch.Tensor, best_r: torch.Tensor, batch: SamplingBatch
) -> list[int]:
    """The rows whose masks left no token. Their logits become 0, so that a draw finds one."""
    if not batch.masked:
        return []
    rows = torch.tensor(batch.masked, device=logits_rv.device)
    values = logits_rv[rows, best_r.index_select(0, rows)].tolist()
    found = [i for i, value in zip(batch.masked, values, strict=True) if value == -torch.inf]
    if found:
        logits_rv[found] = 0.0
    return found


def keep_near_best(logits_rv: torch.Tensor, batch: SamplingBatch) -> None:
    """Forbid logits further than top_n_sigma standard deviations below the largest one (Tang et
    al., 2024), in place. Tokens that are already forbidden do not count."""
    if (near := batch.near_best) is None:
        return
    logits_gv = logits_rv.index_select(0, near.rows_g)
    is_left_gv = logits_gv > -torch.inf
    num_left_g1 = is_left_gv.sum(dim=1, keepdim=True)
    mean_g1 = _sum(logits_gv.where(is_left_gv, 0.0)) / num_left_g1
    squares_gv = (logits_gv - mean_g1).square().where(is_left_gv, 0.0)
    distance_g1 = near.num_sigmas_g1 * (_sum(squares_gv) / num_left_g1).sqrt()
    bound_g1 = logits_gv.amax(dim=1, keepdim=True) - distance_g1
    logits_gv.masked_fill_(logits_gv < bound_g1, -torch.inf)
    logits_rv.index_copy_(0, near.rows_g, logits_gv)


def _sum(x_gv: torch.Tensor) -> torch.Tensor:
    """In float64 and in order: torch splits the plain sum of a single row among threads, which
    rounds differently from the sum of the same row in a batch."""
    return x_gv.double().cumsum(dim=1)[:, -1:]


def _add_bias(logits_rv: torch.Tensor, bias: LogitBias) -> None:
    logits_rv.index_put_((bias.rows_n, bias.token_ids_n), bias.values_n, accumulate=True)


def _forbid_early_stops(logits_rv: torch.Tensor, min_tokens: Sequence[tuple[int, Row]]) -> None:
    vocab_size = logits_rv.shape[1]
    for index, row in min_tokens:
        start = row.state.start
        if row.num_generated_tokens < start.sampling_params.min_tokens:
            # A model may name an end token beyond its logits.
            stops = [token_id for token_id in start.stop_token_ids if token_id < vocab_size]
            logits_rv[index, stops] = -torch.inf


def _keep_allowed(logits_rv: torch.Tensor, allowed: AllowedTokens) -> None:
    kept_n = logits_rv[allowed.rows_n, allowed.token_ids_n]
    logits_rv.index_fill_(0, allowed.rows_g, -torch.inf)
    logits_rv[allowed.rows_n, allowed.token_ids_n] = kept_n


def _forbid_bad_words(logits_rv: torch.Tensor, bad_words: Sequence[tuple[int, Row]]) -> None:
    places = [(index, token_id) for index, row in bad_words for token_id in row.forbidden]
    if places:
        rows_n, token_ids_n = torch.tensor(places, device=logits_rv.device).unbind(dim=1)
        logits_rv[rows_n, token_ids_n] = -torch.inf


def _penalize(logits_rv: torch.Tensor, penalties: Penalties) -> None:
    """Repetition as in Keskar et al., 2019 (CTRL); presence and frequency as in the OpenAI API.

    Only the logits of tokens that the request has seen are read and written.
    """
    counts = [row.token_counts for row in penalties.rows]
    lengths = [len(tokens) for tokens in counts]

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(logits_rv.device, non_blocking=True)

    rows_n = on_device(np.repeat(penalties.indices, lengths))
    token_ids_n = on_device(np.concatenate([tokens.token_ids for tokens in counts]))
    counts_n = on_device(np.concatenate([tokens.output_counts for tokens in counts]))
    repetition_n = on_device(np.repeat(penalties.repetition, lengths))
    logits_n = logits_rv[rows_n, token_ids_n]
    logits_n = torch.where(logits_n > 0, logits_n / repetition_n, logits_n * repetition_n)
    logits_n -= on_device(np.repeat(penalties.frequency, lengths)) * counts_n
    logits_n -= on_device(np.repeat(penalties.presence, lengths)) * (counts_n > 0)
    logits_rv[rows_n, token_ids_n] = logits_n


def _raw_logprobs(logits_rv: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    rows_l = torch.tensor(list(batch.num_logprobs), device=logits_rv.device)
    return logits_rv.index_select(0, rows_l).log_softmax(dim=1)


def _describe(
    logprobs_lv: torch.Tensor, token_ids_r: torch.Tensor, batch: SamplingBatch
) -> dict[int, TokenLogprobs]:
    rows, counts = list(batch.num_logprobs), list(batch.num_logprobs.values())
    rows_l = torch.tensor(rows, device=logprobs_lv.device)
    found = describe(logprobs_lv, token_ids_r.index_select(0, rows_l), counts)
    for place, row in enumerate(rows):
        wanted = batch.rows[row].params.logprob_token_ids
        if wanted is not None:
            found[place] = replace(found[place], top=logprobs_of(logprobs_lv[place], wanted))
    return dict(zip(rows, found, strict=True))
