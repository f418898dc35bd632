"""Computes the memory that images need, from the headers of a model's files alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.config import EngineConfig
from ..linear.base import LinearBackend, LinearSpec
from ..linear.choice import packed_bytes
from ..weights.checkpoint import Checkpoint
from .config import TowerConfig
from .reading import find_vision

_FLOAT32 = 4
"""Bytes of a number of a norm of averages, and of a bias that a native backend keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMemory:
    """The memory that images need, in bytes."""

    tower: int
    """Weights of the vision tower."""
    cache: int
    """The encoder cache: the rows of all images of the largest prompt."""
    pixels: int
    """The pixels of the largest prompt."""
    encoder: int
    """Estimate for one run of the encoder."""
    num_images: int
    """Images of one prompt, at most."""
    tokens_per_image: int
    """The number of tokens of the largest image."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.tower + self.cache + self.pixels + self.encoder


def estimate_images(
    checkpoint: Checkpoint, config: EngineConfig, linear: type[LinearBackend], spec: LinearSpec
) -> ImageMemory | None:
    """The memory of the process that computes this checkpoint. None: it serves only text.

    Raises ConfigError for a damaged tower, or one that cannot be computed.
    """
    if not checkpoint.config.has_embedding:
        return None  # an earlier stage has the rows
    found = find_vision(checkpoint, config, spec.dtype)
    if found is None:
        return None
    sizes, info = found.sizes, found.info
    num_tokens = info.cache_bytes // info.bytes_per_token
    num_tiles = num_tokens // found.tokens_per_tile
    return ImageMemory(
        tower=tower_bytes(sizes, linear, spec),
        cache=info.cache_bytes,
        pixels=num_tiles * 3 * found.tile**2,
        encoder=found.encoder_bytes,
        num_images=config.image_limit.count,
        tokens_per_image=num_tokens // config.image_limit.count,
    )


def span_tokens(checkpoint: Checkpoint, config: EngineConfig, spec: LinearSpec) -> int:
    """See MediaInfo.largest_span_tokens; 0 if only text is served. Raises ConfigError as
    `estimate_images` does."""
    found = find_vision(checkpoint, config, spec.dtype)
    return 0 if found is None else found.info.largest_span_tokens


def tower_bytes(config: TowerConfig, linear: type[LinearBackend], spec: LinearSpec) -> int:
    """The memory of a tower's weights, as `load_tower` loads it."""
    e = config.hidden_size
    numbers = config.num_patches_per_side**2 * e + 2 * e * (1 + 2 * config.num_layers)
    size = numbers * spec.dtype.itemsize + config.pools * e * _FLOAT32
    for rows, inputs, has_bias in _products(config):
        packed = packed_bytes(linear, spec, spec.dtype, rows, inputs)
        is_native = packed is not None  # such backends keep biases in float32
        size += rows * inputs * spec.dtype.itemsize if packed is None else packed
        size += has_bias * rows * (_FLOAT32 if is_native else spec.dtype.itemsize)
    return size


def _products(config: TowerConfig) -> Iterator[tuple[int, int, bool]]:
    """Rows and inputs of each matrix, and whether it has a bias."""
    e, i = config.hidden_size, config.intermediate_size
    yield e, 3 * config.patch_size**2, True
    yield config.text_hidden_size, config.projected_size, False
    for _ in range(config.num_layers):
        yield 3 * e, e, True
        yield e, e, True
        yield i, e, True
        yield e, i, True
