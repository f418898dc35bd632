"""A step of a draft head as one call of the native library.

Shape suffixes: r rows, e hidden size, i intermediate size, v vocabulary, d logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch

from ..models.draft_head import DraftHead
from .library import PackedLinearStruct, load_library
from .projections import NativeLinear

_POINTER = ctypes.c_void_p
_PACKED = ctypes.POINTER(PackedLinearStruct)


class DraftHeadModelStruct(ctypes.Structure):
    """`DraftHeadModel` of csrc/draft_head.cpp."""

    _fields_ = (
        ("hidden_size", ctypes.c_int64),
        ("intermediate_size", ctypes.c_int64),
        ("embedding", _POINTER),
        ("ones", _POINTER),
        ("norm", _POINTER),
        ("fc", _PACKED),
        ("gate_up", _PACKED),
        ("down", _PACKED),
        ("head", _PACKED),
        ("eps", ctypes.c_float),
    )


class DraftHeadStepStruct(ctypes.Structure):
    """`DraftHeadStep` of csrc/draft_head.cpp."""

    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("token_ids", _POINTER),
        ("state", _POINTER),
        ("both", _POINTER),
        ("inner", _POINTER),
        ("normed", _POINTER),
        ("logits", _POINTER),
    )


def make_draft_head_call(head: DraftHead, embedding_ve: torch.Tensor) -> DraftHeadCall | None:
    """The call, or None unless every product is native; `embedding_ve` is the target's."""
    products = head.fc, head.gate_up, head.down, head.lm_head
    is_native = all(isinstance(product, NativeLinear) for product in products)
    if not is_native or embedding_ve.dtype is not torch.bfloat16:
        return None
    return DraftHeadCall(head, embedding_ve)


class DraftHeadCall:
    """See HeadModel of draft_head_runner.py."""

    def __init__(self, head: DraftHead, embedding_ve: torch.Tensor) -> None:
        gate_up, down = _native(head.gate_up), _native(head.down)
        self._hidden_size = embedding_ve.shape[1]
        self._inner_size = down.packed.in_features
        self._num_logits = _native(head.lm_head).packed.out_features
        ones = torch.ones(self._hidden_size)
        norm = head.norm.weight.float().contiguous()
        self._kept = head, embedding_ve, ones, norm
        """What the structure points to."""
        self._model = DraftHeadModelStruct(
            hidden_size=self._hidden_size,
            intermediate_size=self._inner_size,
            embedding=embedding_ve.data_ptr(),
            ones=ones.data_ptr(),
            norm=norm.data_ptr(),
            fc=ctypes.pointer(_native(head.fc).packed.struct),
            gate_up=ctypes.pointer(gate_up.packed.struct),
            down=ctypes.pointer(down.packed.struct),
            head=ctypes.pointer(_native(head.lm_head).packed.struct),
            eps=head.norm.eps,
        )
        self._scratch = torch.empty(0, dtype=torch.bfloat16)
        self._run: Callable[..., None] = load_library().function(
            "tm_run_draft_head",
            None,
            ctypes.POINTER(DraftHeadModelStruct),
            ctypes.POINTER(DraftHeadStepStruct),
        )

    def step(
        self, state_re: torch.Tensor, token_ids_r: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See HeadModel."""
        assert state_re.is_contiguous() and state_re.dtype is torch.bfloat16
        assert token_ids_r.is_contiguous() and token_ids_r.dtype is torch.int64
        num_rows, size = state_re.shape
        needed = num_rows * (3 * size + self._inner_size)
        if needed > len(self._scratch):
            self._scratch = torch.empty(needed, dtype=torch.bfloat16)
        both = self._scratch.data_ptr()
        normed = both + 2 * num_rows * 2 * size
        logits_rd = torch.from_numpy(np.empty((num_rows, self._num_logits), np.float32))
        step = DraftHeadStepStruct(
            num_rows=num_rows,
            token_ids=token_ids_r.data_ptr(),
            state=state_re.data_ptr(),
            both=both,
            inner=normed + 2 * num_rows * size,
            normed=normed,
            logits=logits_rd.data_ptr(),
        )
        self._run(ctypes.byref(self._model), ctypes.byref(step))
        return state_re, logits_rd


def _native(product: object) -> NativeLinear:
    assert isinstance(product, NativeLinear)
    return product
