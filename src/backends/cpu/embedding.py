"""Embeddings that the native library looks up.

Shape suffixes: t tokens, v vocabulary, e hidden size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..linear.base import Embedding
from ..linear.torch import EmbeddingTable
from .native.structures import EmbeddingStruct
from .packed_weights import PackedLinear


@dataclass(frozen=True, slots=True)
class NativeEmbedding:
    """The rows of packed weights: of a head, or of weights that are only looked up. See
    Embedding."""

    packed: PackedLinear
    """One matrix [v, e]."""
    dtype: torch.dtype

    def __call__(self, token_ids_t: torch.Tensor) -> torch.Tensor:
        return self.packed.look_up(token_ids_t.long().contiguous(), self.dtype)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def num_parameters(self) -> int:
        return self.packed.num_rows * self.packed.in_features

    @property
    def num_bytes(self) -> int:
        return self.packed.num_bytes

    def shared(self, share: Callable[[torch.Tensor], torch.Tensor]) -> NativeEmbedding:
        return NativeEmbedding(self.packed.moved(share), self.dtype)


def describe_embedding(embedding: Embedding) -> EmbeddingStruct | None:
    """The addresses of an embedding's rows, which the caller keeps alive. None: the library cannot
    read them."""
    if isinstance(embedding, NativeEmbedding):
        return EmbeddingStruct(packed=ctypes.pointer(embedding.packed.struct))
    if isinstance(embedding, EmbeddingTable) and embedding.dtype in (torch.bfloat16, torch.float32):
        return EmbeddingStruct(table=embedding.weight_ve.data_ptr())
    return None
