"""The SigLIP tower of SmolVLM, Idefics3 and Gemma 3, before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...attention.base import AttentionBackend
from ...linear.base import LinearBackend, LinearSpec
from ...media.gemma3.processor import Gemma3Processor
from ...media.idefics3.processor import Idefics3Processor
from ..base import LargestImage
from ..source import TowerFiles
from ..weight_reader import product_bytes
from .config import SiglipConfig, read_tower_config
from .loading import load_tower
from .tower import VisionTower, images_at_once

_HUGE = 1 << 14
"""In pixels. The processor makes its maximum number of tiles from a square of this size."""
_FLOAT32 = 4
"""Bytes of a number of a norm of averages."""


def read_siglip(fields: Mapping[str, Any], source: str) -> SiglipPlan:
    """Read the plan; see PLANS."""
    return SiglipPlan(config=read_tower_config(fields, source))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipPlan:
    """See TowerPlan."""

    config: SiglipConfig

    def largest_image(
        self,
        fields: Mapping[str, Any],
        kwargs: Mapping[str, Any],
        width: int | None,
        height: int | None,
    ) -> LargestImage:
        pools = self.config.pools
        processor = (Gemma3Processor if pools else Idefics3Processor)(fields, kwargs)
        num_tokens = processor.num_tokens(width or _HUGE, height or _HUGE)
        num_tiles = num_tokens // processor.tokens_per_item
        return LargestImage(
            num_tokens=num_tokens,
            pixel_bytes=num_tiles * 3 * processor.side**2,
            run_shape=(processor.side, processor.side),
            span_tokens=processor.tokens_per_item if pools else 0,
        )

    def images_at_once(self, device: torch.device) -> int:
        return images_at_once(device)

    def weight_bytes(self, linear: type[LinearBackend], spec: LinearSpec) -> int:
        config = self.config
        e = config.hidden_size
        numbers = config.num_patches_per_side**2 * e + 2 * e * (1 + 2 * config.num_layers)
        size = numbers * spec.dtype.itemsize + config.pools * e * _FLOAT32
        return size + sum(
            product_bytes(linear, spec, rows, inputs, has_bias=has_bias)
            for rows, inputs, has_bias in _products(config)
        )

    def load(
        self,
        files: TowerFiles,
        *,
        dtype: torch.dtype,
        device: torch.device,
        linear: LinearBackend,
        attention: type[AttentionBackend] | None,
    ) -> VisionTower:
        return load_tower(
            files, self.config, dtype=dtype, device=device, linear=linear, attention=attention
        )


def _products(config: SiglipConfig) -> Iterator[tuple[int, int, bool]]:
    """Rows and inputs of each matrix, and whether it has a bias."""
    e, i = config.hidden_size, config.intermediate_size
    yield e, 3 * config.patch_size**2, True
    yield config.text_hidden_size, config.projected_size, False
    for _ in range(config.num_layers):
        yield 3 * e, e, True
        yield e, e, True
        yield i, e, True
        yield e, i, True
