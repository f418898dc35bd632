"""Attention by FlashAttention, in the best generation that is installed and fits the GPU.

Torch writes keys and values, and the generation's own kernels attend. They read any layout of the
cache, so this backend can share a cache with any other backend that lists its layouts.

Shape suffixes: t tokens of the step, h query heads, k KV heads, d head size, n KV blocks, s slots
of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....core.log import get_logger
from ...machine.device import compute_capability
from ..base import AttentionBatch, AttentionCapabilities, AttentionSpec, GraphSupport
from ..gpu_reasons import reasons_of_half_precision, reasons_of_machine
from ..graph_inputs import GraphInputs
from ..kv_layout import KVLayout, StepSlots
from .fa2 import FlashAttention2
from .fa3 import FlashAttention3, VllmFlashAttention3
from .fa4 import FlashAttention4
from .generation import Generation, reasons_against, state_on_this_machine

log = get_logger("model")

GENERATIONS: tuple[type[Generation], ...] = (
    FlashAttention3,
    VllmFlashAttention3,
    FlashAttention4,
    FlashAttention2,
)
"""The supported generations, best first; this order holds on every GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashMetadata:
    """One step's layout, ready to be used by every layer."""

    slots: StepSlots
    of_generation: Any
    """The metadata that the generation built."""


class FlashAttention:
    """The FlashAttention backend; see AttentionBackend for the contract."""

    name = "flash-attn"
    graphs: GraphSupport = "decodes"
    capabilities = AttentionCapabilities(
        kv_cache_layouts=(KVLayout.BLOCKS, KVLayout.HALVES, KVLayout.HEADS), reports=True
    )

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        reasons = reasons_of_half_precision(spec, compute_capability(spec.device))
        chosen, of_generations = _choose(spec)
        return [*reasons, *of_generations] if chosen is None else reasons

    @classmethod
    def on_this_machine(cls) -> list[str]:
        capability, lacks = reasons_of_machine()
        return [*lacks, *(state_on_this_machine(g, capability) for g in GENERATIONS)]

    def __init__(self, spec: AttentionSpec) -> None:
        chosen, passed_over = _choose(spec)
        assert chosen is not None, "reasons_against was not called first"
        log.debug("flash_attention_chosen", generation=chosen.name, passed_over=passed_over)
        self._spec = spec
        self._layout = spec.kv_cache_layout or self.capabilities.kv_cache_layouts[0]
        self._generation = chosen(spec)
        self.generation = chosen.name
        self._graph_inputs: GraphInputs | None = None

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return [n, 2, s, k, d], unless the spec names another layout."""
        return self._layout.shape(self._spec, num_blocks)

    def build_metadata(self, batch: AttentionBatch) -> FlashMetadata:
        return FlashMetadata(
            slots=StepSlots.of(batch.slot_mapping_t, self._spec.block_size),
            of_generation=self._generation.build_metadata(batch),
        )

    def forward(
        self,
        layer: int,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: FlashMetadata,
        out_thd: torch.Tensor,
    ) -> None:
        cached = self._layout.views(kv_cache)
        k_tkd, v_tkd = metadata.slots.write(cached, k_tkd, v_tkd)
        self._generation.attend(q_thd, k_tkd, v_tkd, cached, metadata.of_generation, out_thd)

    def copy_blocks(
        self, source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
    ) -> None:
        self._layout.copy_blocks(source, target, pairs)

    def begin_capture(self, max_num_seqs: int, max_model_len: int) -> None:
        self._graph_inputs = GraphInputs.allocate(self._spec, max_num_seqs, max_model_len)

    def prepare_capture(self, num_seqs: int) -> FlashMetadata:
        inputs = self._graph_inputs
        assert inputs is not None, "begin_capture was not called"
        return FlashMetadata(
            slots=inputs.slots(num_seqs),
            of_generation=self._generation.build_metadata(inputs.batch(num_seqs)),
        )

    def prepare_replay(self, batch: AttentionBatch, num_seqs: int) -> None:
        assert self._graph_inputs is not None, "begin_capture was not called"
        self._graph_inputs.fill(batch, num_seqs, self._spec.block_size)


def _choose(spec: AttentionSpec) -> tuple[type[Generation] | None, list[str]]:
    """Return the best generation for the spec, and why better ones were passed over."""
    capability = compute_capability(spec.device)
    passed_over: list[str] = []
    for generation in GENERATIONS:
        reasons = reasons_against(generation, spec, capability)
        if not reasons:
            return generation, passed_over
        passed_over.append(f"{generation.name}: {', '.join(reasons)}")
    return None, passed_over
