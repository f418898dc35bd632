"""Sampling by the native library: one pass over each row of logits, and few calls.

Shape suffixes: r sampled rows, n rows from which a token is drawn or a draft is tried, f rows with
probabilities, k draft tokens of a sequence, v vocabulary, d logits of a draft model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from ..sampling.batch import SamplingBatch, tried_states
from ..sampling.drawing import LogitsReading
from ..sampling.masks import RowMasks
from ..sampling.noise import Purpose
from ..sampling.ops import RowsToDraw
from ..state.request_state import RequestState
from .native.library import Library
from .native.structures import (
    DRAWN_ROW,
    DrawCallStruct,
    LogitsCallStruct,
    LogitsRowsStruct,
    MaskCallStruct,
    TrialCallStruct,
)


class _Described:
    """Arrays for the library that stay the same as long as a batch is used.

    Draft tokens and their distributions are not among them: a batch is reused for other drafts of
    the same number.
    """

    def __init__(self, batch: SamplingBatch, num_logits: int) -> None:
        self.drawn = _as_array(batch, batch.drawn, num_logits)
        self.tried = _as_array(batch, batch.tried, num_logits)
        self.states = tried_states(batch.rows, batch.tried)
        counts = [len(state.draft_token_ids) for state in self.states]
        self.ends = np.array(list(accumulate(counts)), dtype=np.int64)
        self.unseeded = [
            (n, i) for n, i in enumerate(batch.drawn) if batch.rows[i].params.seed is None
        ]
        """Drawn rows without a seed: (index among the drawn rows, index among all rows)."""


class NativeSampling:
    """SamplingOps by the native library. All tensors must be contiguous and on the CPU."""

    def __init__(self, library: Library) -> None:
        self._read = library.computing(
            "tm_read_logits", "reading logits", LogitsCallStruct, ctypes.c_int64
        )
        self._mask = library.computing(
            "tm_mask_logits", "masking logits", MaskCallStruct, ctypes.c_int64
        )
        self._draw = library.computing("tm_draw", "drawing tokens", DrawCallStruct)
        self._try = library.computing("tm_try_drafts", "trying drafts", TrialCallStruct)
        self._described: WeakKeyDictionary[SamplingBatch, _Described] = WeakKeyDictionary()

    def read_logits(self, logits_rv: torch.Tensor) -> LogitsReading:
        """See SamplingOps. Both results take one pass over the logits."""
        assert logits_rv.is_contiguous() and logits_rv.dtype is torch.float32
        num_rows, size = logits_rv.shape
        best_r = torch.empty(num_rows, dtype=torch.int64)
        is_finite_r = torch.empty(num_rows, dtype=torch.bool)
        call = LogitsCallStruct(
            logits_rv.data_ptr(), size, best_r.data_ptr(), is_finite_r.data_ptr()
        )
        self._read(ctypes.byref(call), num_rows)
        return LogitsReading(best_r=best_r, is_finite_r=is_finite_r)

    def mask(self, logits_rv: torch.Tensor, masks: RowMasks) -> None:
        assert logits_rv.is_contiguous() and logits_rv.dtype is torch.float32
        size, num_words = logits_rv.shape[1], masks.masks_gw.shape[1]
        assert num_words == -(-size // 32) and masks.masks_gw.flags.c_contiguous
        call = MaskCallStruct(
            logits=logits_rv.data_ptr(),
            size=size,
            rows=masks.rows_g.ctypes.data,
            masks=masks.masks_gw.ctypes.data,
            words=num_words,
        )
        self._mask(ctypes.byref(call), len(masks.rows_g))

    def draw(self, rows: RowsToDraw) -> None:
        described = self._describe(rows)
        if len(described.drawn):
            call = DrawCallStruct(
                rows=_describe_rows(rows, described.drawn), count=len(described.drawn)
            )
            self._draw(ctypes.byref(call))
        if len(described.tried):
            self._try_drafts(described, _describe_rows(rows, described.tried))

    def draw_drafts(
        self, rows: RowsToDraw, places_d: torch.Tensor | None, vocab_size: int
    ) -> dict[int, torch.Tensor]:
        described, size = self._describe(rows), rows.logits_rv.shape[1]
        if places_d is None:
            assert size == vocab_size, "without places, each token has a logit"
        else:
            assert places_d.shape == (size,) and places_d.dtype is torch.int64
        # Allocated by numpy, not torch: see DecoderCall.logits.
        probs_fv = np.empty((len(described.unseeded), vocab_size), np.float32)
        probs = np.zeros(len(described.drawn), np.int64)
        for probs_v, (n, _) in zip(probs_fv, described.unseeded, strict=True):
            probs[n] = probs_v.ctypes.data
        call = DrawCallStruct(
            rows=_describe_rows(rows, described.drawn),
            count=len(described.drawn),
            probs=probs.ctypes.data,
            probs_size=vocab_size,
            places=None if places_d is None else places_d.data_ptr(),
        )
        self._draw(ctypes.byref(call))
        indices = [row for _, row in described.unseeded]
        return dict(zip(indices, torch.from_numpy(probs_fv), strict=True))

    def _try_drafts(self, described: _Described, rows: LogitsRowsStruct) -> None:
        drafts = [token_id for state in described.states for token_id in state.draft_token_ids]
        drafts_n = np.array(drafts, dtype=np.int64)
        kept = [_read_probs(state) for state in described.states]
        addresses = [
            probs_kv.data_ptr() + row * probs_kv.stride(0) * probs_kv.itemsize
            for probs_kv in kept
            for row in range(len(probs_kv))
        ]
        q_n = np.array(addresses, dtype=np.int64)
        call = TrialCallStruct(
            rows=rows,
            num_sequences=len(described.ends),
            ends=described.ends.ctypes.data,
            drafts=drafts_n.ctypes.data,
            q=q_n.ctypes.data,
            accept_purpose=Purpose.ACCEPT,
        )
        self._try(ctypes.byref(call))

    def _describe(self, rows: RowsToDraw) -> _Described:
        described = self._described.get(rows.batch)
        if described is None:
            described = self._described[rows.batch] = _Described(
                rows.batch, rows.logits_rv.shape[1]
            )
        return described


def _as_array(
    batch: SamplingBatch, indices: Sequence[int], num_logits: int
) -> npt.NDArray[np.void]:
    rows = []
    for i in indices:
        row = batch.rows[i]
        params, top_k = row.params, row.top_k(num_logits)
        rows.append((i, batch.seed_of(row), params.top_p, top_k, params.temperature, params.min_p))
    return np.array(rows, dtype=DRAWN_ROW)


def _describe_rows(rows: RowsToDraw, drawn: npt.NDArray[np.void]) -> LogitsRowsStruct:
    logits_rv = rows.logits_rv
    assert logits_rv.is_contiguous() and logits_rv.dtype is torch.float32
    for of_rows in (rows.positions_r, rows.token_ids_r):
        assert of_rows.is_contiguous() and of_rows.dtype is torch.int64
        assert of_rows.shape == logits_rv.shape[:1]
    best = rows.token_ids_r.data_ptr()
    return LogitsRowsStruct(
        logits=logits_rv.data_ptr(),
        size=logits_rv.shape[1],
        best=best,
        positions=rows.positions_r.data_ptr(),
        drawn=drawn.ctypes.data,
        token_ids=best,
    )


def _read_probs(state: RequestState) -> torch.Tensor:
    """Contiguous distributions [drafts, v] from which a request's draft tokens were drawn."""
    probs_kv = state.draft_probs_kv
    assert probs_kv is not None and not probs_kv.is_cuda, "drafts are tried only if they were drawn"
    assert len(probs_kv) == len(state.draft_token_ids), "each draft comes with its distribution"
    return probs_kv.contiguous()
