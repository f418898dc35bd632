"""The KV cache's memory: how many blocks there is room for, and the tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.plan import BlockCopies, CopyDirection
from ..attention.base import AttentionBackend
from ..machine.host_memory import HostMemory
from ..weights.model_config import ModelConfig

CPU_DEFAULT = 1 << 30
"""Bytes; on a CPU the cache takes no more than this and no more than a quarter of what is free."""

SWAP_DEFAULT = 4 << 30
"""Bytes of host memory for swapped requests, if a quarter of what is free allows it."""

AMPLE_BLOCKS = 1 << 16
"""More are taken only if the running requests could hold them: on a big GPU a small model would
get millions, and each costs the host some bytes and start-up time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """One tensor per layer, on the device and, for swapping, on the host."""

    layers: Sequence[torch.Tensor]
    host_layers: Sequence[torch.Tensor]
    num_blocks: int
    block_size: int

    @property
    def device(self) -> torch.device:
        return self.layers[0].device


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUMemory:
    """Where a GPU's memory goes once the weights are there, in bytes."""

    total: int
    used_elsewhere: int
    """By other programs, and by this one outside of torch's tensors."""
    weights: int
    activations: int
    """Most that one step needs beside the weights."""

    def room(self, utilization: float) -> int:
        """What is left for the KV cache of the part that this engine may use."""
        taken = self.used_elsewhere + self.weights + self.activations
        return int(self.total * utilization) - taken


def bytes_per_block(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return 2 * model.num_layers * block_size * model.num_kv_heads * model.head_size * dtype.itemsize


def fixed_num_blocks(config: EngineConfig, block_bytes: int) -> int | None:
    """How many blocks the configuration asks for; None when what is free decides.

    Raises ConfigError when --kv-cache-memory does not hold a single block.
    """
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory is None:
        return None
    knob = f"raise --kv-cache-memory to {block_bytes} or more"
    return _blocks_in(config.kv_cache_memory, config, block_bytes, knob)


def count_cpu_blocks(config: EngineConfig, model: ModelConfig, block_bytes: int) -> int:
    """How many blocks main memory has room for, beside everything else that runs there.

    Raises ConfigError when there is no room for a single one.
    """
    room = min(CPU_DEFAULT, psutil.virtual_memory().available // 4)
    knob = "free some memory (a quarter of it is taken), or set --kv-cache-memory"
    return min(_blocks_in(room, config, block_bytes, knob), _most_blocks(config, model))


def count_gpu_blocks(
    config: EngineConfig, model: ModelConfig, block_bytes: int, memory: GPUMemory
) -> int:
    """How many blocks fit into what weights and activations leave.

    Raises ConfigError when there is no room for a single one.
    """
    knob = (
        f"of the GPU's {memory.total >> 20} MiB, a part of {config.gpu_memory_utilization:g} may be "
        f"used; {memory.used_elsewhere >> 20} MiB are in use elsewhere, {memory.weights >> 20} MiB "
        f"go to weights and {memory.activations >> 20} MiB to activations. Raise --gpu-memory-utilization, lower "
        "--max-num-batched-tokens or use a smaller model"
    )
    room = memory.room(config.gpu_memory_utilization)
    return min(_blocks_in(room, config, block_bytes, knob), _most_blocks(config, model))


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
            f"--swap-space asks for {config.swap_space:g} GiB and {free / 2**30:.1f} GiB are free; "
            "lower it"
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
    """The tensors. The device's are zeroed: backends may read a block's unused slots, and NaN there
    would spread. The host's are written before they are read. Main memory, the CPU's cache and the
    host's, is taken from the system only as it is used.

    Raises ConfigError when a CPU's cache asks for more memory than is free."""
    shape = attention.kv_cache_shape(num_blocks)
    host_shape = attention.kv_cache_shape(num_host_blocks)
    is_pinned = device.type == "cuda" and num_host_blocks > 0
    return KVCache(
        layers=_zeros(num_layers, shape, dtype, device),
        host_layers=[
            torch.empty(host_shape, dtype=dtype, pin_memory=is_pinned) for _ in range(num_layers)
        ],
        num_blocks=num_blocks,
        block_size=block_size,
    )


def copy_blocks(cache: KVCache, attention: AttentionBackend, copies: BlockCopies) -> None:
    """Copy blocks of every layer between device and host."""
    out = copies.direction is CopyDirection.OUT
    for device_kv, host_kv in zip(cache.layers, cache.host_layers, strict=True):
        source, target = (device_kv, host_kv) if out else (host_kv, device_kv)
        attention.copy_blocks(source, target, copies.pairs)


def _zeros(
    num_layers: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Sequence[torch.Tensor]:
    if device.type != "cpu":
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
    layer_bytes = math.prod(shape) * dtype.itemsize
    _refuse_more_than_free(num_layers * layer_bytes)
    memory = HostMemory(num_layers * layer_bytes)  # one for all: each is rounded to huge pages
    return [memory.tensor(i * layer_bytes, shape, dtype) for i in range(num_layers)]


def _refuse_more_than_free(num_bytes: int) -> None:
    """What is taken only as it is used would otherwise be missed in the middle of the work."""
    free: int = psutil.virtual_memory().available
    if num_bytes > free:
        raise ConfigError(
            f"the KV cache would get {num_bytes / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            "free; lower --kv-cache-memory or --num-gpu-blocks-override"
        )


def _most_blocks(config: EngineConfig, model: ModelConfig) -> int:
    max_len = config.max_model_len or model.max_position_embeddings
    return max(AMPLE_BLOCKS, config.max_num_seqs * -(-max_len // config.block_size))


def _blocks_in(room: int, config: EngineConfig, block_bytes: int, knob: str) -> int:
    if room < block_bytes:
        raise ConfigError(
            f"the KV cache would get {max(room, 0)} bytes and a single block of "
            f"{config.block_size} tokens needs {block_bytes}: {knob}"
        )
    return room // block_bytes
