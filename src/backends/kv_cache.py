"""The KV cache's memory: how many blocks there is room for, and the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from ..core.config import EngineConfig
from ..core.errors import ConfigError
from .attention.base import AttentionBackend
from .models.config import ModelConfig

CPU_DEFAULT = 1 << 30
"""Bytes; on a CPU the cache takes no more than this and no more than a quarter of what is free."""

SWAP_DEFAULT = 4 << 30
"""Bytes of host memory for swapped requests, if a quarter of what is free allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """One tensor per layer, on the device and, for swapping, on the host."""

    layers: Sequence[torch.Tensor]
    host_layers: Sequence[torch.Tensor]
    block_size: int

    @property
    def device(self) -> torch.device:
        return self.layers[0].device


def bytes_per_block(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * model.num_layers * block_size * model.num_kv_heads * model.head_size * dtype.itemsize


def count_blocks(
    config: EngineConfig, block_bytes: int, *, cuda_room: int | None, block_limit: int
) -> int:
    """How many blocks the cache has.

    `cuda_room` is what weights and activations leave of `gpu_memory_utilization`, in bytes, None on
    a CPU; `block_limit` is what max_num_seqs sequences of full length could ever use. Raises
    ConfigError, which names the knob, when there is no room for a single block.
    """
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory is not None:
        room, knob = config.kv_cache_memory, "raise --kv-cache-memory"
    elif cuda_room is not None:
        room, knob = cuda_room, "raise --gpu-memory-utilization or use a smaller model"
    else:
        room = min(CPU_DEFAULT, psutil.virtual_memory().available // 4)
        knob = "free memory, or set --kv-cache-memory"
    if room < block_bytes:
        raise ConfigError(
            f"the KV cache would get {max(room, 0)} bytes and a single block of {config.block_size} tokens "
            f"needs {block_bytes}: {knob}"
        )
    return min(room // block_bytes, block_limit)


def count_host_blocks(config: EngineConfig, block_bytes: int) -> int:
    """Blocks of the host pool that preempted requests are swapped to: `swap_space` GiB of them.

    Raises ConfigError when the host has less memory free than what was asked for.
    """
    free: int = psutil.virtual_memory().available
    if config.swap_space is None:
        return min(SWAP_DEFAULT, free // 4) // block_bytes
    wanted = int(config.swap_space * 2**30)
    if wanted > free:
        raise ConfigError(
            f"--swap-space asks for {config.swap_space:g} GiB and {free / 2**30:.1f} GiB are free; lower it"
        )
    return wanted // block_bytes


def allocate(
    attention: AttentionBackend,
    *,
    num_layers: int,
    num_blocks: int,
    num_host_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """Device memory is zeroed: backends may read a block's unused slots, and NaN there would spread.

    Host blocks are only read after they were written whole, so theirs is not touched before.
    """
    shape = attention.kv_cache_shape(num_blocks)
    host_shape = attention.kv_cache_shape(num_host_blocks)
    pinned = device.type == "cuda" and num_host_blocks > 0
    return KVCache(
        layers=[torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)],
        host_layers=[
            torch.empty(host_shape, dtype=dtype, pin_memory=pinned) for _ in range(num_layers)
        ],
        block_size=block_size,
    )
