"""The KV cache's memory: the number of blocks that fit, and the tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.plan import BlockCopies, CopyDirection
from ..attention.base import AttentionBackend
from ..machine.host_memory import HostMemory
from ..machine.memory import usable_memory
from ..weights.config.kv_groups import KVGroups
from ..weights.config.model_config import ModelConfig

CPU_DEFAULT = 1 << 30
"""Maximum size of the cache on a CPU, in bytes. A quarter of the free memory is a second limit."""

SWAP_DEFAULT = 4 << 30
"""Host memory for swapped requests, in bytes, if this is at most a quarter of the free memory."""

MOST_OF_FREE = 0.95
"""Maximum fraction of a GPU's free memory that an engine takes. torch rounds allocations up."""

AMPLE_BLOCKS = 1 << 16
"""Maximum number of blocks, unless the running requests could hold more. On a big GPU a small model
would otherwise get millions of blocks, and each costs host memory and start-up time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """A tensor for each layer of a block, on the device and, for swapping, on the host."""

    tensors: Sequence[torch.Tensor]
    host_tensors: Sequence[torch.Tensor]
    groups: KVGroups
    num_blocks: int
    block_size: int

    @property
    def layers(self) -> Sequence[torch.Tensor]:
        """The tensor of every layer of the model. Layers of different groups may share one."""
        return [self.tensors[place] for place in self.groups.place_of_layer]

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUMemory:
    """The memory that a GPU has, and that an engine needs besides the KV cache, in bytes."""

    total: int
    free: int
    """Free memory before the engine took any. Other programs and engines have the rest."""
    weights: int
    activations: int
    """Peak memory of one step, without the weights."""
    other: int
    """Memory that the engine takes outside of torch's tensors."""

    def limit(self, utilization: float) -> int:
        """The most that an engine may take when it may use this fraction of the total."""
        return min(int(self.total * utilization), int(self.free * MOST_OF_FREE))

    def room(self, utilization: float) -> int:
        """The part of the limit that is left for the KV cache."""
        return self.limit(utilization) - self.weights - self.activations - self.other


def bytes_per_block(
    model: ModelConfig, block_size: int, dtype: torch.dtype, groups: KVGroups | None = None
) -> int:
    """Bytes of one block: keys and values of its layers. `groups` None: all layers in one group."""
    num_layers = model.num_layers if groups is None else groups.layers_per_block
    return 2 * num_layers * block_size * model.num_kv_heads * model.head_size * dtype.itemsize


def fixed_num_blocks(config: EngineConfig, block_bytes: int) -> int | None:
    """The number of blocks that the configuration sets; None if free memory decides.

    Raises ConfigError if --kv-cache-memory does not hold a single block.
    """
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_cache_memory is None:
        return None
    knob = f"raise --kv-cache-memory to {block_bytes} or more"
    return _blocks_in(config.kv_cache_memory, config, block_bytes, knob)


def count_cpu_blocks(
    config: EngineConfig, model: ModelConfig, block_bytes: int, num_groups: int = 1
) -> int:
    """The number of blocks on a CPU: at most CPU_DEFAULT bytes and a quarter of the free memory,
    which replicas and ranks share.

    Raises ConfigError if not a single block fits.
    """
    room = min(CPU_DEFAULT, _share_of_free_memory(config))
    knob = "free some memory (the cache takes a quarter of it), or set --kv-cache-memory"
    return min(_blocks_in(room, config, block_bytes, knob), _most_blocks(config, model, num_groups))


def count_gpu_blocks(
    config: EngineConfig,
    model: ModelConfig,
    block_bytes: int,
    memory: GPUMemory,
    num_groups: int = 1,
) -> int:
    """The number of blocks that fit into a GPU's memory, after weights and activations.

    Raises ConfigError if not a single block fits.
    """
    limit = memory.limit(config.gpu_memory_utilization)
    knob = (
        f"{limit >> 20} of the GPU's {memory.total >> 20} MiB may be used "
        f"(--gpu-memory-utilization {config.gpu_memory_utilization:g}; {memory.free >> 20} MiB "
        f"were free), weights take {memory.weights >> 20} MiB, activations "
        f"{memory.activations >> 20} MiB and libraries {memory.other >> 20} MiB. Raise "
        "--gpu-memory-utilization, stop other programs on the GPU, lower "
        "--max-num-batched-tokens or use a smaller model"
    )
    room = memory.room(config.gpu_memory_utilization)
    return min(_blocks_in(room, config, block_bytes, knob), _most_blocks(config, model, num_groups))


def _share_of_free_memory(config: EngineConfig) -> int:
    """A quarter of the free memory, divided by the number of processes that load the model."""
    return usable_memory() // 4 // (config.data_parallel_size * config.num_ranks)


def count_host_blocks(config: EngineConfig, block_bytes: int) -> int:
    """The number of blocks in the host pool for preempted requests: `swap_space` GiB.

    Raises ConfigError if the host has less free memory than that.
    """
    if config.swap_space is None:
        return min(SWAP_DEFAULT, _share_of_free_memory(config)) // block_bytes
    free = usable_memory()
    wanted = int(config.swap_space * 2**30)
    if wanted > free:
        raise ConfigError(
            f"--swap-space asks for {config.swap_space:g} GiB, but only {free / 2**30:.1f} GiB "
            "are free: lower it"
        )
    return wanted // block_bytes


def allocate(
    attention: AttentionBackend,
    *,
    groups: KVGroups,
    num_blocks: int,
    num_host_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """Allocate the cache: one tensor per layer of a block on the device, and one in host memory.

    The system provides main memory, for a CPU's cache and for the host pool, only when it is first
    written. Raises ConfigError if a CPU's cache needs more memory than is free.
    """
    # The device's tensors are zeroed: backends may read a block's unused slots, and NaN there would
    # spread. The host's tensors are written before they are read.
    shape = attention.kv_cache_shape(num_blocks)
    host_shape = attention.kv_cache_shape(num_host_blocks)
    is_pinned = device.type == "cuda" and num_host_blocks > 0
    num_layers = groups.layers_per_block
    return KVCache(
        tensors=_zeros(num_layers, shape, dtype, device),
        host_tensors=[
            torch.empty(host_shape, dtype=dtype, pin_memory=is_pinned) for _ in range(num_layers)
        ],
        groups=groups,
        num_blocks=num_blocks,
        block_size=block_size,
    )


def copy_blocks(cache: KVCache, attention: AttentionBackend, copies: BlockCopies) -> None:
    """Copy whole blocks between the device and the host."""
    out = copies.direction is CopyDirection.OUT
    for device_kv, host_kv in zip(cache.tensors, cache.host_tensors, strict=True):
        source, target = (device_kv, host_kv) if out else (host_kv, device_kv)
        attention.copy_blocks(source, target, copies.pairs)


def _zeros(
    num_layers: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Sequence[torch.Tensor]:
    if device.type != "cpu":
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
    layer_bytes = math.prod(shape) * dtype.itemsize
    _refuse_more_than_free(num_layers * layer_bytes)
    # One allocation for all layers: each allocation is rounded up to whole huge pages.
    memory = HostMemory(num_layers * layer_bytes)
    return [memory.tensor(i * layer_bytes, shape, dtype) for i in range(num_layers)]


def _refuse_more_than_free(num_bytes: int) -> None:
    """Raise ConfigError if there is less free memory: else it would run out during generation."""
    free = usable_memory()
    if num_bytes > free:
        raise ConfigError(
            f"the KV cache would get {num_bytes / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            "free: lower --kv-cache-memory or --num-gpu-blocks-override"
        )


def _most_blocks(config: EngineConfig, model: ModelConfig, num_groups: int) -> int:
    max_len = config.max_model_len or model.max_position_embeddings
    num_running = config.max_num_seqs * num_groups * -(-max_len // config.block_size)
    return max(AMPLE_BLOCKS, num_running)


def _blocks_in(room: int, config: EngineConfig, block_bytes: int, knob: str) -> int:
    if room < block_bytes:
        raise ConfigError(
            f"the KV cache would get {max(room, 0)} bytes and a single block of "
            f"{config.block_size} tokens needs {block_bytes}: {knob}"
        )
    return room // block_bytes
