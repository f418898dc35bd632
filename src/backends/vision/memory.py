"""Computes the memory that images need, from the headers of a model's files alone."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.config import EngineConfig
from ..linear.base import LinearBackend, LinearSpec
from ..weights.checkpoint import Checkpoint
from .reading import find_vision


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
    largest, num_images = found.largest, config.image_limit.count
    return ImageMemory(
        tower=found.plan.weight_bytes(linear, spec),
        cache=found.info.cache_bytes,
        pixels=num_images * largest.pixel_bytes,
        encoder=found.encoder_bytes(spec.device),
        num_images=num_images,
        tokens_per_image=largest.num_tokens,
    )


def span_tokens(checkpoint: Checkpoint, config: EngineConfig, spec: LinearSpec) -> int:
    """See MediaInfo.largest_span_tokens; 0 if only text is served. Raises ConfigError as
    `estimate_images` does."""
    found = find_vision(checkpoint, config, spec.dtype)
    return 0 if found is None else found.info.largest_span_tokens
