"""Runs a step of a draft head as one call of the native library.

Shape suffixes: r rows, e hidden size, i intermediate size, v vocabulary, d logits.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from ..linear.base import Embedding
from ..models.draft_head import DraftHead
from .embedding import describe_embedding
from .native.library import load_library
from .native.structures import DraftHeadModelStruct, DraftHeadStepStruct, EmbeddingStruct
from .projections import NativeLinear


def make_draft_head_call(head: DraftHead, embedding: Embedding) -> DraftHeadCall | None:
    """The call for a draft head, or None if a product of the head is not native.

    `embedding`: that of the target model.
    """
    products = head.fc, head.gate_up, head.down, head.lm_head
    is_native = all(isinstance(product, NativeLinear) for product in products)
    rows = describe_embedding(embedding)
    return DraftHeadCall(head, embedding, rows) if is_native and rows is not None else None


class DraftHeadCall:
    """HeadModel of draft_head_runner.py, computed by the native library."""

    def __init__(self, head: DraftHead, embedding: Embedding, rows: EmbeddingStruct) -> None:
        """`rows` describes the embedding."""
        gate_up, down = _native(head.gate_up), _native(head.down)
        self._hidden_size = down.packed.out_features
        self._inner_size = down.packed.in_features
        self._num_logits = _native(head.lm_head).packed.out_features
        ones = torch.ones(self._hidden_size)
        norm = head.norm.weight.float().contiguous()
        self._kept = head, embedding, ones, norm
        """Keeps the tensors alive that the structure points to."""
        self._model = DraftHeadModelStruct(
            hidden_size=self._hidden_size,
            intermediate_size=self._inner_size,
            embedding=rows,
            ones=ones.data_ptr(),
            norm=norm.data_ptr(),
            fc=ctypes.pointer(_native(head.fc).packed.struct),
            gate_up=ctypes.pointer(gate_up.packed.struct),
            down=ctypes.pointer(down.packed.struct),
            head=ctypes.pointer(_native(head.lm_head).packed.struct),
            eps=head.norm.eps,
        )
        self._scratch = torch.empty(0, dtype=torch.bfloat16)
        self._run = load_library().computing(
            "tm_run_draft_head", "a draft head", DraftHeadModelStruct, DraftHeadStepStruct
        )

    def step(
        self, state_re: torch.Tensor, token_ids_r: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
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
