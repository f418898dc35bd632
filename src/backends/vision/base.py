"""The interface between vision towers and the engine. A tower is the encoder of images, with the
projection into the text model. Each kind of tower has a folder here.

Shape suffixes: n images, y, x pixels, c channels, r tokens of an image, t hidden size of the text
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..attention.base import AttentionBackend
from ..linear.base import LinearBackend, LinearSpec
from .source import TowerFiles


class Tower(Protocol):
    """Encodes pixels: each item becomes rows of the text model's input."""

    @property
    def device(self) -> torch.device:
        """The device of its weights and rows."""
        ...

    @property
    def images_at_once(self) -> int:
        """The maximum number of images of one shape that are encoded together."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory of all weights, in bytes."""
        ...

    def encode(self, pixels_nyxc: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, r, t] of images of one shape.

        Pixels are uint8, on the CPU. Images may have any shape that the model's media processor
        makes; r depends on the shape.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestImage:
    """The sizes of the largest image that a prompt may have."""

    num_tokens: int
    """The number of tokens that its items fill."""
    pixel_bytes: int
    """Memory for the pixels of its items."""
    run_shape: tuple[int, int]
    """Height and width of the largest item, in pixels."""
    span_tokens: int = 0
    """See MediaInfo.largest_span_tokens."""


class TowerConfig(Protocol):
    """The facts about a tower that the engine needs; each kind of tower has more of its own."""

    @property
    def text_hidden_size(self) -> int:
        """Length of a row, which is the text model's hidden size."""
        ...

    @property
    def image_token_id(self) -> int:
        """See MediaInfo.placeholder_token_id."""
        ...

    @property
    def shown_token_id(self) -> int | None:
        """See MediaInfo."""
        ...

    def run_bytes(self, height: int, width: int, itemsize: int) -> int:
        """Estimate the bytes of memory for encoding one image of this size in pixels. Activations
        have `itemsize` bytes per value."""
        ...


class TowerPlan(Protocol):
    """A tower that is not loaded yet, described by the files of a model."""

    @property
    def config(self) -> TowerConfig: ...

    def largest_image(
        self,
        fields: Mapping[str, Any],
        kwargs: Mapping[str, Any],
        width: int | None,
        height: int | None,
    ) -> LargestImage:
        """The largest image of at most `width` x `height` pixels; None: of any size.

        `fields`: those of VisionSource. `kwargs`: --mm-processor-kwargs. Raises ConfigError for
        settings that the processor cannot follow.
        """
        ...

    def images_at_once(self, device: torch.device) -> int:
        """See Tower.images_at_once."""
        ...

    def weight_bytes(self, linear: type[LinearBackend], spec: LinearSpec) -> int:
        """The memory of the weights that `load` loads, in bytes."""
        ...

    def load(
        self,
        files: TowerFiles,
        *,
        dtype: torch.dtype,
        device: torch.device,
        linear: LinearBackend,
        attention: type[AttentionBackend] | None,
    ) -> Tower:
        """Read the tower in `dtype` on `device`. `linear` makes its matrix products. `attention`
        computes attention if it supports the tower.

        `files` have the names of `tower_tensor`. Raises ConfigError when a tensor is missing or has
        the wrong shape.
        """
        ...
