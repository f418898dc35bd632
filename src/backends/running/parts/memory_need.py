"""Computes a model's memory from its files' headers, and refuses a model that is too large."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ...linear.base import LinearBackend, LinearSpec
from ...linear.choice import looks_up, packed_bytes
from ...machine.memory import loadable_memory
from ...vision.memory import estimate_images
from ...weights.checkpoint import Checkpoint
from ...weights.config.model_config import ModelConfig
from ...weights.formats.quantizing import QUANTIZE_ON_LOAD
from ...weights.packed import StoredTensor, WeightFormat
from ...weights.quantized_on_load import QuantizedOnLoad

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

    @property
    def looks_up(self) -> bool:
        """Whether the backend looks up rows of the weights that it keeps: see LinearBackend."""
        return self.is_packable and looks_up(self.linear, self.spec)

    def packed_bytes(self, stored: StoredTensor) -> int:
        """Return the memory for a matrix that stays packed."""
        assert not isinstance(stored.format, torch.dtype)
        size = self._packed_bytes(stored, stored.format)
        return stored.num_bytes if size is None else size

    def copied_bytes(self, stored: StoredTensor) -> int:
        """Return the memory for a matrix in floating point that the backend copies."""
        size = self._packed_bytes(stored, self.spec.dtype)
        return self.dense_bytes(stored) if size is None else size

    def _packed_bytes(self, stored: StoredTensor, format: WeightFormat | torch.dtype) -> int | None:
        rows, inputs = stored.num_elements // stored.shape[-1], stored.shape[-1]
        return packed_bytes(self.linear, self.spec, format, rows, inputs)

    def dense_bytes(self, stored: StoredTensor) -> int:
        """Return the memory for a tensor in the type of the computation."""
        return stored.num_elements * self.spec.dtype.itemsize


def weight_bytes(checkpoint: Checkpoint, keeping: Keeping, *, is_first: bool = True) -> int:
    """Return the memory for all weights, from the table of tensors alone.

    `is_first`: whether it is the first rank of a stage, in whose embedding the other ranks look up
    rows. It is too large by a head that equals the embedding, if a file has both; and, if torch
    computes, by an embedding that ranks share.
    """
    tensors = {name: checkpoint.stored(name) for name in checkpoint.tensor_names()}
    kept = keeping.kept(tensors.values())
    embedding, head = tensors.pop(EMBEDDING, None), tensors.pop(_HEAD, None)
    packed = cache(keeping.packed_bytes)  # most matrices are alike
    total = _head_bytes(checkpoint.config, keeping, kept, embedding, head)
    if is_first or not keeping.looks_up:
        total += _embedding_bytes(checkpoint.config, keeping, kept, embedding, head)
    for name, one in tensors.items():
        stays_packed = one.format in kept
        total += (
            packed(one) if stays_packed else _dense_bytes(name, one, checkpoint.config, keeping)
        )
    return total


def _head_bytes(
    config: ModelConfig,
    keeping: Keeping,
    kept: Collection[WeightFormat],
    embedding: StoredTensor | None,
    head: StoredTensor | None,
) -> int:
    """Return the memory for the head, as models/native/ends.py loads it. It is 0 if the head is
    the embedding's own memory."""
    whole = head or embedding
    if not config.has_head or whole is None or not _is_matrix(whole):
        return 0
    num_rows = _num_logits(config)
    own = whole.resized((num_rows, whole.shape[1]))
    if own.format in kept:
        return keeping.packed_bytes(own)
    if keeping.looks_up:
        return keeping.copied_bytes(own)
    return 0 if head is None else keeping.dense_bytes(own)


def _embedding_bytes(
    config: ModelConfig,
    keeping: Keeping,
    kept: Collection[WeightFormat],
    embedding: StoredTensor | None,
    head: StoredTensor | None,
) -> int:
    """Return the memory for the embedding. It is 0 if rows of the head are looked up."""
    if embedding is None or not _is_matrix(embedding):
        return 0
    is_tied = config.has_head and head is None
    if is_tied and keeping.looks_up and _num_logits(config) == embedding.shape[0]:
        return 0
    stays_packed = keeping.looks_up and embedding.format in kept
    return keeping.packed_bytes(embedding) if stays_packed else keeping.dense_bytes(embedding)


def _num_logits(config: ModelConfig) -> int:
    """The logits that this process computes."""
    return config.num_logits if config.logits_part is None else config.logits_part[1]


def _is_matrix(stored: StoredTensor) -> bool:
    return len(stored.shape) == 2 and stored.num_elements > 0  # the loader refuses others


def _dense_bytes(name: str, one: StoredTensor, config: ModelConfig, keeping: Keeping) -> int:
    """The memory for a tensor in floating point, other than embedding and head."""
    features = config.features
    is_norm, is_bias = name.endswith("norm.weight"), name.endswith("bias") and "router" not in name
    is_float32 = name.endswith(".sinks") or (features.float32_norms and is_norm)
    itemsize = 4 if is_float32 or (keeping.looks_up and is_bias) else keeping.spec.dtype.itemsize
    heads = {"q_norm": config.num_heads, "k_norm": config.num_kv_heads} if features.qk_norm else {}
    *_, module, _ = ("", *name.split("."))[-3:]
    return one.num_elements * itemsize * heads.get(module, 1)  # one row per head


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
    *,
    reads_images: bool = False,
) -> None:
    """Raise ConfigError if the weights and one block of the KV cache do not fit into memory, with
    all that images need if it `reads_images`.

    `parts`: the parts of the model that share the memory, one per rank. `block_bytes`: of a block
    of all parts together. `available`: bytes for this replica; None: what it may use now.
    """
    weights = _weights_of(parts, keeping, config)
    if available is None:
        available = available_memory(keeping.spec.device)
    model = parts[0].config.for_context(config.max_model_len)
    images = image_bytes(parts, keeping, config) if reads_images else 0
    text = block_bytes + len(parts) * rotary_bytes(model, keeping.spec.dtype)
    others = text + images
    if weights + others <= available:
        return
    dtype = str(keeping.spec.dtype).removeprefix("torch.")
    remedies = [
        flag
        for flag, forms, kept in _remedies(parts, config, keeping)
        if _weights_of(forms, kept, config) + others <= available
    ]
    if images and weights + text <= available:
        remedies.append("lower --limit-mm-per-prompt or use --language-model-only")
    replicas = config.data_parallel_size
    if replicas > 1:
        remedies.append("lower --data-parallel-size")
    rotated = f"{model.max_position_embeddings} positions"
    if images:
        rotated += f", and {images / _GIB:.2f} GiB for images"
    remedy = " or ".join([*remedies, "use a smaller model, or a file with fewer bits per weight"])
    raise ConfigError(
        f"{parts[0].path} needs {weights / _GIB:.2f} GiB of memory for its weights, computed in "
        f"{dtype}, and {text / _GIB:.2f} GiB for a block of KV cache and the rotation of "
        f"{rotated}, but {available / _GIB:.2f} GiB are available"
        f"{f' to each of {replicas} replicas' if replicas > 1 else ''}: {remedy}"
    )


def image_bytes(parts: Sequence[Checkpoint], keeping: Keeping, config: EngineConfig) -> int:
    """Return the memory for images in all of these parts, see ImageMemory."""
    found = [estimate_images(part, config, keeping.linear, keeping.spec) for part in parts]
    return sum(one.total for one in found if one is not None)


def _weights_of(parts: Sequence[Checkpoint], keeping: Keeping, config: EngineConfig) -> int:
    size = config.tensor_parallel_size
    return sum(
        weight_bytes(part, keeping, is_first=rank % size == 0) for rank, part in enumerate(parts)
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
