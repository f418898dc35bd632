"""Attention between all patches of an image, computed by a backend for a paged KV cache.

Shape suffixes: p patches, h heads, d head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ..attention.base import AttentionBackend, AttentionBatch, AttentionSpec
from ..attention.reasons import reasons_against

_BLOCK_SIZE = 64
_HEAD_STEP = 16
"""Kernels need a head size that is a multiple of this."""


def padded_head_size(head_size: int) -> int:
    """The size of heads after padding with zeros, which do not change the result."""
    return -(-head_size // _HEAD_STEP) * _HEAD_STEP


class PatchAttention:
    """Computes the patches of an image like a prompt whose tokens see each other.

    The KV cache has one layer, and lives for one call.
    """

    def __init__(
        self, backend: type[AttentionBackend], head_size: int, spec: AttentionSpec
    ) -> None:
        """Use `find_patch_attention`. `head_size` is without padding, `spec.head_size` with it."""
        self._backend = backend(spec)
        self._head_size, self._spec = head_size, spec
        self._batch: AttentionBatch | None = None
        self._metadata: Any = None
        """The metadata of `_batch`."""

    def __call__(self, heads_p3hd: torch.Tensor) -> torch.Tensor:
        """Return the attention [p, h, d] of the queries, keys and values in `heads_p3hd`."""
        spec, num_patches = self._spec, len(heads_p3hd)
        if self._batch is None or self._batch.seq_lens_host[0] != num_patches:
            self._batch = _batch_of(num_patches, spec.device)
            self._metadata = self._backend.build_metadata(self._batch)
        if spec.head_size > self._head_size:
            heads_p3hd = F.pad(heads_p3hd, (0, spec.head_size - self._head_size))
        num_blocks = self._batch.block_tables_bm.shape[1]
        cache = heads_p3hd.new_empty(self._backend.kv_cache_shape(num_blocks))
        out_phd = heads_p3hd.new_empty(num_patches, spec.num_heads, spec.head_size)
        q_phd, k_phd, v_phd = heads_p3hd.unbind(1)
        self._backend.forward(0, q_phd, k_phd, v_phd, cache, self._metadata, out_phd)
        return out_phd[..., : self._head_size]


def find_patch_attention(
    backend: type[AttentionBackend] | None,
    num_heads: int,
    head_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> PatchAttention | None:
    """Make the attention of a tower. None: `backend` is None or does not support the tower."""
    spec = AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=padded_head_size(head_size),
        block_size=_BLOCK_SIZE,
        dtype=dtype,
        device=device,
        scale=head_size**-0.5,
        sees_ahead=True,
    )
    if backend is None or reasons_against(backend, spec):
        return None
    return PatchAttention(backend, head_size, spec)


def _batch_of(num_patches: int, device: torch.device) -> AttentionBatch:
    """A batch of one sequence, in the first blocks of the cache."""

    def integers(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return AttentionBatch(
        query_start_loc=integers(0, num_patches),
        seq_lens=integers(num_patches),
        block_tables_bm=integers(*range(-(-num_patches // _BLOCK_SIZE)))[None],
        slot_mapping_t=torch.arange(num_patches, device=device),
        query_lens_host=[num_patches],
        seq_lens_host=[num_patches],
        num_decodes=0,
        last_keys_t=integers(num_patches - 1).repeat(num_patches),
    )
