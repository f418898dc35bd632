"""Computes a model's memory from its files' headers, and refuses a model that is too large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ..linear.base import LinearBackend, LinearSpec
from ..linear.choice import packed_bytes
from ..machine.memory import loadable_memory
from ..weights.checkpoint import Checkpoint
from ..weights.config.model_config import ModelConfig
from ..weights.formats.quantizing import QUANTIZE_ON_LOAD
from ..weights.packed import StoredTensor, WeightFormat
from ..weights.quantized_on_load import QuantizedOnLoad

EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """The form in which a model's weights are kept."""

    linear: type[LinearBackend]
    spec: LinearSpec
    keeps_packed: bool
    """False: packed weights are dequantized, whatever the backend keeps."""
    is_packable: bool = True
    """Whether the model could compute with packed weights, if the options let it."""

    def kept(self, tensors: Iterable[StoredTensor]) -> set[WeightFormat]:
        """Return the formats of these tensors that stay packed."""
        formats = {one.format for one in tensors if not isinstance(one.format, torch.dtype)}
        if not self.keeps_packed:
            return set()
        return {format for format in formats if self.linear.keeps(self.spec, format)}

    def packed_bytes(self, stored: StoredTensor) -> int:
        """Return the memory for a matrix that stays packed."""
        assert not isinstance(stored.format, torch.dtype)
        rows, inputs = stored.num_elements // stored.shape[-1], stored.shape[-1]
        size = packed_bytes(self.linear, self.spec, stored.format, rows, inputs)
        return stored.num_bytes if size is None else size


def weight_bytes(checkpoint: Checkpoint, keeping: Keeping) -> int:
    """Return the memory for all weights, from the table of tensors alone.

    A backend may copy a head that equals the embedding: the true number is larger by it. Ranks of
    one machine may share their embedding: then the sum over ranks is too large.
    """
    tensors = {name: checkpoint.stored(name) for name in checkpoint.tensor_names()}
    kept = keeping.kept(tensors.values())
    packed = cache(keeping.packed_bytes)  # most matrices are alike
    total = 0
    for name, one in tensors.items():
        # The embedding is never packed, because its rows are looked up.
        stays_packed = name != EMBEDDING and one.format in kept
        total += packed(one) if stays_packed else one.num_elements * keeping.spec.dtype.itemsize
    embedding = tensors.get(EMBEDDING)
    is_head = checkpoint.config.has_head and _HEAD not in tensors
    if embedding is not None and is_head and embedding.format in kept:
        _, num_rows = checkpoint.config.logits_part or (0, embedding.shape[0])
        head = replace(embedding, shape=(num_rows, embedding.shape[1]))
        total += packed(head)  # the head is packed, the embedding is not
    return total


def rotary_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Return the memory for tables of cosines and sines, while the last one is made in float32."""
    num_tables = len({kind.rope for kind in model.layer_kinds if kind.rope is not None})
    size = model.rotary_size or model.head_size
    return model.max_position_embeddings * size * (num_tables * dtype.itemsize + 4)


def available_memory(device: torch.device, num_ranks: int = 1) -> int:
    """Return the bytes that weights and KV cache of one replica may take on a device. If each of
    several ranks has a GPU, it is the smallest number of them."""
    if device.type != "cuda":
        return loadable_memory()
    gpus = [device] if num_ranks == 1 else range(min(num_ranks, torch.cuda.device_count()))
    return min(int(torch.cuda.mem_get_info(gpu)[0]) for gpu in gpus)


def refuse_too_large(
    parts: Sequence[Checkpoint],
    config: EngineConfig,
    keeping: Keeping,
    block_bytes: int,
    available: int | None = None,
) -> None:
    """Raise ConfigError if the weights and one block of the KV cache do not fit into memory.

    `parts`: the parts of the model that share the memory, one per rank. `block_bytes`: of a block
    of all parts together. `available`: bytes for this replica; None: what it may use now.
    """
    weights = sum(weight_bytes(part, keeping) for part in parts)
    if available is None:
        available = available_memory(keeping.spec.device)
    model = parts[0].config.for_context(config.max_model_len)
    others = block_bytes + len(parts) * rotary_bytes(model, keeping.spec.dtype)
    if weights + others <= available:
        return
    dtype = str(keeping.spec.dtype).removeprefix("torch.")
    remedies = [
        flag
        for flag, forms, kept in _remedies(parts, config, keeping)
        if sum(weight_bytes(form, kept) for form in forms) + others <= available
    ]
    replicas = config.data_parallel_size
    if replicas > 1:
        remedies.append("lower --data-parallel-size")
    remedy = " or ".join([*remedies, "use a smaller model, or a file with fewer bits per weight"])
    raise ConfigError(
        f"{parts[0].path} needs {weights / _GIB:.2f} GiB of memory for its weights, computed in "
        f"{dtype}, and {others / _GIB:.2f} GiB for a block of KV cache and the rotation of "
        f"{model.max_position_embeddings} positions, but {available / _GIB:.2f} GiB are available"
        f"{f' to each of {replicas} replicas' if replicas > 1 else ''}: {remedy}"
    )


def _remedies(
    parts: Sequence[Checkpoint], config: EngineConfig, keeping: Keeping
) -> Iterator[tuple[str, Sequence[Checkpoint], Keeping]]:
    """Yield flags that make the weights smaller, each with the parts and their form in memory."""
    packed = replace(keeping, keeps_packed=keeping.is_packable)
    if config.dtype != "auto":
        yield "use --dtype auto", parts, packed
    if keeping.spec.dtype is torch.float32:
        spec = replace(keeping.spec, dtype=torch.bfloat16)
        half = replace(keeping, spec=spec, keeps_packed=False)
        yield "use --dtype bfloat16", parts, half
    if keeping.is_packable and config.quantize_on_load is None and config.dtype == "auto":
        for name in QUANTIZE_ON_LOAD:
            forms = [QuantizedOnLoad(part, name) for part in parts]
            yield f"use --quantize-on-load {name}", forms, packed
