"""Reads rows of logits: the index of each row's maximum, and whether all its logits are finite.

Shape suffixes: r rows, v vocabulary.
"""

from __future__ import annotations

import ctypes

import torch

from ..sampling.drawing import LogitsReading
from .library import Library
from .structures import LogitsCallStruct


class LogitsReader:
    """`read_logits` of drawing.py by the native library, in one pass and one call."""

    def __init__(self, library: Library) -> None:
        self._run = library.computing(
            "tm_read_logits", "reading logits", LogitsCallStruct, ctypes.c_int64
        )

    def __call__(self, logits_rv: torch.Tensor) -> LogitsReading:
        """Read rows of logits, which must be contiguous float32."""
        assert logits_rv.is_contiguous() and logits_rv.dtype is torch.float32
        num_rows, size = logits_rv.shape
        best_r = torch.empty(num_rows, dtype=torch.int64)
        is_finite_r = torch.empty(num_rows, dtype=torch.bool)
        call = LogitsCallStruct(
            logits_rv.data_ptr(), size, best_r.data_ptr(), is_finite_r.data_ptr()
        )
        self._run(ctypes.byref(call), num_rows)
        return LogitsReading(best_r=best_r, is_finite_r=is_finite_r)
