"""The rows of requests with a grammar: which tokens each of them may choose.

Shape suffixes: r sampled rows, g rows with a mask, w words of 32 tokens, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..grammar.base import MaskedRows, Masks
from ..grammar.grammars import Grammars, allow_all
from ..state.request_state import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMasks:
    rows_g: npt.NDArray[np.int64]
    masks_gw: Masks


class GrammarRows:
    """The rows of requests with a grammar, in the order of a batch's rows."""

    def __init__(self, states: Sequence[RequestState]) -> None:
        first = 0
        rows: list[int] = []
        self._states: list[tuple[RequestState, int]] = []
        """Each state has the index of its first row among the rows with a mask."""
        for state in states:
            num_rows = len(state.draft_token_ids) + 1
            if state.matcher is not None:
                self._states.append((state, len(rows)))
                rows += range(first, first + num_rows)
            first += num_rows
        self._rows_g = np.array(rows, dtype=np.int64)

    def __bool__(self) -> bool:
        return bool(self._states)

    def masks(self, grammars: Grammars, vocab_size: int) -> RowMasks:
        """The masks of all rows. One whose matcher has an error may choose any token."""
        masks_gw = allow_all(len(self._rows_g), -(-vocab_size // 32))
        going_on = [
            MaskedRows(matcher=state.matcher, first_row=row, draft_token_ids=state.draft_token_ids)
            for state, row in self._states
            if state.matcher is not None and state.matcher.error is None
        ]
        if going_on:
            grammars.fill(going_on, masks_gw)
        for state, row in self._states:
            if state.start.sampling_params.min_tokens > state.num_generated_tokens:
                _forbid_early_stops(state, masks_gw[row:])
        return RowMasks(rows_g=self._rows_g, masks_gw=masks_gw)


def _forbid_early_stops(state: RequestState, masks_gw: Masks) -> None:
    """Forbid the end before `min_tokens`, unless the grammar allows nothing else."""
    num_early = state.start.sampling_params.min_tokens - state.num_generated_tokens
    stops = np.array(state.start.stop_token_ids, dtype=np.int64)
    stops = stops[stops < 32 * masks_gw.shape[1]]  # a model may name a token beyond its logits
    for mask_w in masks_gw[: min(num_early, len(state.draft_token_ids) + 1)]:
        without_w = mask_w.copy()
        np.bitwise_and.at(without_w, stops // 32, ~(np.int32(1) << (stops % 32).astype(np.int32)))
        if without_w.any():
            mask_w[:] = without_w


def apply_masks(logits_rv: torch.Tensor, masks: RowMasks) -> None:
    """Set the logits of forbidden tokens to -inf, in place. On any device."""
    vocab_size = logits_rv.shape[1]
    bits_gv = np.unpackbits(masks.masks_gw.view(np.uint8), axis=1, bitorder="little")
    forbidden_gv = torch.from_numpy(bits_gv[:, :vocab_size] == 0)
    device = logits_rv.device
    forbidden_gv = forbidden_gv.to(device, non_blocking=True)
    if len(masks.rows_g) == len(logits_rv):
        logits_rv.masked_fill_(forbidden_gv, -torch.inf)
        return
    rows_g = torch.from_numpy(masks.rows_g).to(device, non_blocking=True)
    logits_rv[rows_g] = logits_rv[rows_g].masked_fill_(forbidden_gv, -torch.inf)
