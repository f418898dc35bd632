"""Calls the CUDA kernels, which write keys and values into the cache and attend."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..attention.base import AttentionSpec
from .library import load_operators
from .splits import Splits


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Consecutive sequences of a step that are computed in one call."""

    block_tables_bm: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    first: int
    count: int
    max_query_len: int


class PagedAttentionCalls:
    """The kernels for one spec; each call is queued on the caller's current stream."""

    def __init__(self, spec: AttentionSpec) -> None:
        """Load the library. Raises BuildError if that fails."""
        self._operators = load_operators()
        self._device = spec.device
        self._rules = (spec.scale, spec.sliding_window or 0, spec.logits_soft_cap or 0.0)
        self._nothing = torch.empty(0, dtype=torch.float32, device=spec.device)
        self._no_size = torch.empty(0, dtype=torch.int32, device=spec.device)

    def write(
        self, k_tkd: torch.Tensor, v_tkd: torch.Tensor, slots_t: torch.Tensor, cache: torch.Tensor
    ) -> None:
        """Write keys and values to their slots; slots below 0 are skipped."""
        self._operators.write_kv(k_tkd, v_tkd, slots_t, cache, self._stream())

    def attend_decodes(
        self,
        sequences: Sequences,
        splits: Splits | None,
        q_thd: torch.Tensor,
        cache: torch.Tensor,
        out_thd: torch.Tensor,
    ) -> None:
        """Attend sequences with few queries; `splits` None: no context is split."""
        s = sequences
        self._operators.attend_decodes(
            *(q_thd, cache, s.block_tables_bm, s.query_start_loc, s.seq_lens, out_thd),
            self._nothing if splits is None else splits.partial_sums,
            self._nothing if splits is None else splits.partial_stats,
            self._no_size if splits is None else splits.size,
            *(s.first, s.count, s.max_query_len),
            1 if splits is None else splits.max_splits,
            *self._rules,
            self._stream(),
        )

    def attend_prompts(
        self,
        sequences: Sequences,
        q_thd: torch.Tensor,
        cache: torch.Tensor,
        out_thd: torch.Tensor,
    ) -> None:
        s = sequences
        self._operators.attend_prompts(
            *(q_thd, cache, s.block_tables_bm, s.query_start_loc, s.seq_lens, out_thd),
            *(s.first, s.count, s.max_query_len),
            *self._rules,
            self._stream(),
        )

    def _stream(self) -> int:
        if self._device.type != "cuda":
            return 0
        stream: int = torch.cuda.current_stream(self._device).cuda_stream
        return stream
