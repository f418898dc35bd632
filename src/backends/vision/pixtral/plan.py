"""Mistral 3's vision tower before it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...attention.base import AttentionBackend
from ...linear.base import LinearBackend, LinearSpec
from ...media.mistral3.processor import Mistral3Processor
from ..base import LargestImage
from ..source import TowerFiles
from ..weight_reader import product_bytes
from .config import PixtralConfig, read_pixtral_config
from .loading import load_pixtral
from .tower import PixtralTower


def read_pixtral(fields: Mapping[str, Any], source: str) -> PixtralPlan:
    """Read the plan; see PLANS."""
    return PixtralPlan(config=read_pixtral_config(fields, source))


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralPlan:
    """See TowerPlan."""

    config: PixtralConfig

    def largest_image(
        self,
        fields: Mapping[str, Any],
        kwargs: Mapping[str, Any],
        width: int | None,
        height: int | None,
    ) -> LargestImage:
        processor = Mistral3Processor(fields, kwargs)
        size = processor.largest_size(width, height)
        columns, lines = processor.sides(*size)
        return LargestImage(
            num_tokens=processor.num_tokens(*size),
            pixel_bytes=3 * columns * lines,
            run_shape=(lines, columns),
        )

    def images_at_once(self, device: torch.device) -> int:
        return 1

    def weight_bytes(self, linear: type[LinearBackend], spec: LinearSpec) -> int:
        norms = self.config.hidden_size * (2 + 2 * self.config.num_layers)
        return norms * spec.dtype.itemsize + sum(
            product_bytes(linear, spec, rows, inputs, has_bias=has_bias)
            for rows, inputs, has_bias in _products(self.config)
        )

    def load(
        self,
        files: TowerFiles,
        *,
        dtype: torch.dtype,
        device: torch.device,
        linear: LinearBackend,
        attention: type[AttentionBackend] | None,
    ) -> PixtralTower:
        return load_pixtral(
            files, self.config, dtype=dtype, device=device, linear=linear, attention=attention
        )


def _products(config: PixtralConfig) -> Iterator[tuple[int, int, bool]]:
    """Rows and inputs of each matrix, and whether it has a bias."""
    e, i, t = config.hidden_size, config.intermediate_size, config.text_hidden_size
    yield e, 3 * config.patch_size**2, False
    yield e, config.merge_size**2 * e, False
    yield t, e, config.projector_bias
    yield t, t, config.projector_bias
    for _ in range(config.num_layers):
        yield 3 * e, e, False
        yield e, e, False
        yield 2 * i, e, False
        yield e, i, False
