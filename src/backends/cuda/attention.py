"""Attention by our own CUDA kernels, which read the paged cache in place.

One kernel computes decodes, another prompts and chunks; see csrc. Slots that hold no token of a
sequence may contain anything.

Shape suffixes: t tokens of the step, b sequences, h query heads, k KV heads, d head size, n KV
blocks, s slots of a block, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...core.interfaces import Progress
from ..attention.base import AttentionBatch, AttentionCapabilities, AttentionSpec, GraphSupport
from ..attention.fp8 import FP8_DTYPES
from ..attention.gpu_reasons import reasons_of_device, reasons_of_machine
from ..attention.graph_inputs import PaddedInputs
from ..attention.kv_layout import KVLayout
from ..attention.reasons import reasons_of_dtype, reasons_of_heads
from ..machine.compiling import BuildError
from ..machine.device import compute_capability, count_processors
from .build import HEAD_SIZES, PREBUILT, find_nvcc
from .library import load_operators
from .paged_attention import PagedAttentionCalls, Sequences
from .splits import (
    Splits,
    allocate_splits,
    choose_split_size,
    count_splits,
    most_splits,
    splits_to_capture,
)

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_ROWS_OF_DECODE_BLOCK = 16
"""Query heads that one thread block of the decode kernel computes: FewRows::kRows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaPagedMetadata:
    """One step's layout, ready to be used by every layer."""

    slot_mapping_t: torch.Tensor
    decodes: Sequences | None
    splits: Splits | None
    """None: the decodes' contexts are not split."""
    prompts: Sequences | None
    """Prompts and chunks of prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GraphInputs:
    """Inputs of captured graphs: memory at addresses that stay the same in every replay."""

    padded: PaddedInputs
    query_start_loc: torch.Tensor
    splits: Splits
    """Memory for the splits of every graph: graphs run one at a time."""


class CudaPagedAttention:
    """The backend with our own kernels; see AttentionBackend for the contract."""

    name = "cuda-paged"
    graphs: GraphSupport = "decodes"
    capabilities = AttentionCapabilities(
        kv_cache_layouts=(KVLayout.HEADS,), kv_cache_dtypes=FP8_DTYPES, builds=True, reports=True
    )

    @classmethod
    def build(cls, spec: AttentionSpec, progress: Progress) -> None:
        """Compile the kernels if they can serve the spec. Raises BuildError."""
        if not _reasons_of_spec(spec):
            load_operators(progress)

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        """Every reason why this backend cannot serve the spec; empty when it can.

        If there is no other reason, the kernels are built, unless they have been built before.
        """
        reasons = _reasons_of_spec(spec)
        if not reasons:
            try:
                load_operators()
            except BuildError as error:
                reasons.append(str(error))
        return reasons

    @classmethod
    def on_this_machine(cls) -> list[str]:
        return [*reasons_of_machine()[1], *_reasons_of_nvcc()]

    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._calls = PagedAttentionCalls(spec)
        self._num_processors = count_processors(spec.device)
        rows = spec.num_heads // spec.num_kv_heads
        self._blocks_per_split = spec.num_kv_heads * -(-rows // _ROWS_OF_DECODE_BLOCK)
        self._graph_inputs: _GraphInputs | None = None

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """[n, k, 2, s, d]: per block and head, first the keys, then the values."""
        return KVLayout.HEADS.shape(self._spec, num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> CudaPagedMetadata:
        """Divide a step into decodes and the rest, without waiting for the device."""
        num_decodes, query_lens = batch.num_decodes, batch.query_lens_host
        longest = max(query_lens[num_decodes:], default=0)
        sequences = Sequences(
            block_tables_bm=batch.block_tables_bm,
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            first=0,
            count=num_decodes,
            max_query_len=1,
        )
        prompts = replace(
            sequences,
            first=num_decodes,
            count=len(query_lens) - num_decodes,
            max_query_len=longest,
        )
        return CudaPagedMetadata(
            slot_mapping_t=batch.slot_mapping_t,
            decodes=sequences if num_decodes else None,
            splits=self._split(self._visible(batch)),
            prompts=prompts if longest else None,
        )

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: CudaPagedMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        q_thd, k_tkd, v_tkd = (_with_aligned_tokens(x) for x in (q_thd, k_tkd, v_tkd))
        self._calls.write(k_tkd, v_tkd, metadata.slot_mapping_t, kv_cache)
        if metadata.decodes is not None:
            self._calls.attend_decodes(metadata.decodes, metadata.splits, q_thd, kv_cache, out_thd)
        if metadata.prompts is not None:
            self._calls.attend_prompts(metadata.prompts, q_thd, kv_cache, out_thd)

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        KVLayout.HEADS.copy_blocks(source, target, pairs)

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        places = max(n * self._splits_to_capture(n) for n in range(1, max_num_seqs + 1))
        self._graph_inputs = _GraphInputs(
            padded=PaddedInputs.allocate(self._spec, max_num_seqs, max_model_len),
            query_start_loc=torch.arange(
                max_num_seqs + 1, dtype=torch.int32, device=self._spec.device
            ),
            splits=self._allocate(1, places, 1),
        )

    def prepare_capture(self, num_seqs: int) -> CudaPagedMetadata:
        inputs = self._graph_inputs
        assert inputs is not None, "begin_capture was not called"
        inputs.padded.clear()
        sequences = Sequences(
            block_tables_bm=inputs.padded.block_tables_bm,
            query_start_loc=inputs.query_start_loc,
            seq_lens=inputs.padded.seq_lens,
            first=0,
            count=num_seqs,
            max_query_len=1,
        )
        return CudaPagedMetadata(
            slot_mapping_t=inputs.padded.slot_mapping_b[:num_seqs],
            decodes=sequences,
            splits=replace(inputs.splits, max_splits=self._splits_to_capture(num_seqs)),
            prompts=None,
        )

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        """Fill in a step of decodes before the graph of `num_seqs` sequences is replayed.

        Padding sequences write nothing, and their output is 0.
        """
        inputs = self._graph_inputs
        assert inputs is not None, "begin_capture was not called"
        inputs.padded.fill(batch, num_seqs)
        size = self._split_size(self._visible(batch), self._splits_to_capture(num_seqs))
        inputs.splits.size.fill_(size)

    def _visible(self, batch: AttentionBatch) -> list[int]:
        """Return how many keys each decode sees."""
        window = self._spec.sliding_window
        lengths = batch.seq_lens_host[: batch.num_decodes]
        return [min(length, window or length) for length in lengths]

    def _split_size(self, visible: Sequence[int], max_splits: int) -> int:
        return choose_split_size(visible, self._blocks_per_split, self._num_processors, max_splits)

    def _split(self, visible: Sequence[int]) -> Splits | None:
        size = self._split_size(visible, self._most_splits(len(visible)))
        max_splits = count_splits(visible, size)
        return None if max_splits == 1 else self._allocate(len(visible), max_splits, size)

    def _splits_to_capture(self, num_seqs: int) -> int:
        wanted = splits_to_capture(num_seqs, self._blocks_per_split, self._num_processors)
        return min(wanted, self._most_splits(num_seqs))

    def _most_splits(self, num_seqs: int) -> int:
        return most_splits(num_seqs, self._spec.num_heads, self._spec.head_size)

    def _allocate(self, num_seqs: int, max_splits: int, size: int) -> Splits:
        spec = self._spec
        return allocate_splits(
            num_seqs, spec.num_heads, spec.head_size, max_splits, size, spec.device
        )


def _reasons_of_spec(spec: AttentionSpec) -> list[str]:
    device = reasons_of_device(spec, compute_capability(spec.device))
    return [*device, *_reasons_of_shape(spec), *_reasons_of_nvcc()]


def _reasons_of_shape(spec: AttentionSpec) -> list[str]:
    reasons = reasons_of_dtype(spec, _DTYPES) + reasons_of_heads(spec)
    if spec.head_size not in HEAD_SIZES:
        known = ", ".join(map(str, HEAD_SIZES))
        reasons.append(f"heads must have {known} elements, not {spec.head_size}")
    if spec.scale <= 0:
        reasons.append(f"scores must be scaled by a positive factor, not {spec.scale}")
    return reasons


def _reasons_of_nvcc() -> list[str]:
    if PREBUILT.exists():
        return []
    try:
        find_nvcc()
    except BuildError as error:
        return [str(error)]
    return []


def _with_aligned_tokens(x_tnd: torch.Tensor) -> torch.Tensor:
    """Copy the tensor unless each token's heads are contiguous and aligned to 16 bytes.

    Views of the decoder's projections are; the kernels load 16 bytes at a time.
    """
    is_whole = x_tnd.stride(2) == 1 and x_tnd.stride(1) == x_tnd.shape[2]
    is_aligned = (x_tnd.stride(0) * x_tnd.itemsize | x_tnd.data_ptr()) % 16 == 0
    return x_tnd if is_whole and is_aligned else x_tnd.clone(memory_format=torch.contiguous_format)
