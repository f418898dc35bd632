"""The contenders: attention backends with their whole interface, and peers' kernels alone.

For a workload, a contender makes a function that computes one of several layers, each with its own
KV cache. A backend's layer writes the step's keys and values and attends. A peer's layer only
attends, over keys and values that exist already, which favours the peers a little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from kernel_workloads import Workload

from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.attention.choice import choose_attention_backend
from tokenmill.backends.attention.flash.backend import GENERATIONS
from tokenmill.backends.attention.flash.generation import reasons_against
from tokenmill.backends.attention.kv_layout import KVLayout
from tokenmill.backends.machine.device import compute_capability
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost

Layer = Callable[[int], None]


class Unable(Exception):
    """A contender cannot compute a workload. The message is the reason."""


class Contender(Protocol):
    """Makes layers to time. See the module's docstring."""

    is_peer: bool

    def prepare(
        self, workload: Workload, dtype: torch.dtype, device: torch.device, num_layers: int
    ) -> Layer:
        """Make a function that computes the layer with a given index. Raises Unable."""
        ...


class Backend:
    """A Contender that uses the attention backend of a plugin."""

    is_peer = False

    def __init__(self, name: str, block_size: int) -> None:
        config = EngineConfig.from_options(attention_backend=name)
        self._class = choose_attention_backend(PluginHost.load(config))
        self._block_size = block_size

    def prepare(
        self, workload: Workload, dtype: torch.dtype, device: torch.device, num_layers: int
    ) -> Layer:
        """See Contender."""
        spec = workload.spec(self._block_size, dtype, device)
        reasons = self._class.reasons_against(spec)
        if reasons:
            raise Unable("; ".join(reasons))
        made = self._class(spec)
        shape = made.kv_cache_shape(workload.num_blocks(self._block_size))
        caches = [_random(spec, *shape) for _ in range(num_layers)]
        metadata = made.build_metadata(workload.batch(self._block_size, device))
        q_thd, k_tkd, v_tkd = _rows(workload, spec)
        out_thd = torch.empty_like(q_thd)

        def layer(index: int) -> None:
            made.forward(index, q_thd, k_tkd, v_tkd, caches[index], metadata, out_thd)

        return layer


class FlashKernel:
    """A Contender with only the kernel of the best installed generation of FlashAttention."""

    is_peer = True

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def prepare(
        self, workload: Workload, dtype: torch.dtype, device: torch.device, num_layers: int
    ) -> Layer:
        """See Contender."""
        spec = workload.spec(self._block_size, dtype, device)
        generation = _choose_generation(spec)(spec)
        shape = KVLayout.BLOCKS.shape(spec, workload.num_blocks(self._block_size))
        caches = [KVLayout.BLOCKS.views(_random(spec, *shape)) for _ in range(num_layers)]
        metadata = generation.build_metadata(workload.batch(self._block_size, device))
        q_thd, k_tkd, v_tkd = _rows(workload, spec)
        out_thd = torch.empty_like(q_thd)

        def layer(index: int) -> None:
            generation.attend(q_thd, k_tkd, v_tkd, caches[index], metadata, out_thd)

        return layer


class TorchKernel:
    """A Contender with torch's scaled_dot_product_attention over contiguous keys and values."""

    is_peer = True

    def prepare(
        self, workload: Workload, dtype: torch.dtype, device: torch.device, num_layers: int
    ) -> Layer:
        """See Contender."""
        if workload.num_decodes and workload.num_chunks:
            raise Unable("it supports sequences of one length only")
        from torch.nn.attention.bias import causal_lower_right

        heads, spec = workload.heads, workload.spec(16, dtype, device)
        count, queries, length = (
            len(workload.seq_lens),
            workload.query_lens[0],
            workload.seq_lens[0],
        )
        kv_shape = (count, heads.num_kv_heads, length, heads.head_size)
        caches = [(_random(spec, *kv_shape), _random(spec, *kv_shape)) for _ in range(num_layers)]
        q_bhqd = _random(spec, count, heads.num_heads, queries, heads.head_size)
        is_part = 1 < queries < length
        options: dict[str, Any] = {
            "attn_mask": causal_lower_right(queries, length) if is_part else None,
            "is_causal": 1 < queries == length,
            "scale": spec.scale,
            "enable_gqa": True,
        }

        def layer(index: int) -> None:
            F.scaled_dot_product_attention(q_bhqd, *caches[index], **options)

        return layer


CONTENDERS: Mapping[str, Callable[[], Contender]] = {
    "torch-sdpa": TorchKernel,
    "flash-kernel-16": lambda: FlashKernel(16),
    "flash-kernel-128": lambda: FlashKernel(128),
    "flash-kernel-256": lambda: FlashKernel(256),
    "cuda-paged": lambda: Backend("cuda-paged", 16),
    "triton": lambda: Backend("triton", 16),
    "flash-attn": lambda: Backend("flash-attn", 16),
    "xformers": lambda: Backend("xformers", 64),
    "torch": lambda: Backend("torch", 16),
    "cpu": lambda: Backend("cpu", 16),
}
"""Contenders by name. A number in a name is the block size; others have 16, and xformers 64."""


def _choose_generation(spec: AttentionSpec) -> Any:
    capability = compute_capability(spec.device)
    said = []
    if capability is None:
        raise Unable(f"it runs on NVIDIA GPUs, not on {spec.device.type}")
    for generation in GENERATIONS:
        reasons = reasons_against(generation, spec, capability)
        if not reasons:
            return generation
        said.append(f"{generation.name}: {', '.join(reasons)}")
    raise Unable("; ".join(said))


def _rows(
    workload: Workload, spec: AttentionSpec
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The step's queries, keys and values."""
    count = sum(workload.query_lens)
    sizes = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    q_thd, k_tkd, v_tkd = (_random(spec, count, size, spec.head_size) for size in sizes)
    return q_thd, k_tkd, v_tkd


def _random(spec: AttentionSpec, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=spec.dtype, device=spec.device).normal_()
