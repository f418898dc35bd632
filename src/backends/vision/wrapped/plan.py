"""The tower of Qwen2.5-VL, which transformers' own module computes, before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from ....core.errors import ConfigError
from ...attention.base import AttentionBackend
from ...linear.base import LinearBackend, LinearSpec
from ...media.qwen2_vl.processor import Qwen2VLProcessor
from ..base import LargestImage, Tower
from ..source import TowerFiles
from .config import WrappedConfig, read_wrapped_config

TRANSFORMERS_NEEDED = (
    "images of this model need the package transformers: pip install 'transformers>=5', or serve "
    "only text with --language-model-only"
)


def read_wrapped(fields: Mapping[str, Any], source: str) -> WrappedPlan:
    """Read the plan; see PLANS. Raises ConfigError without the package transformers, too."""
    if find_spec("transformers") is None:
        raise ConfigError(TRANSFORMERS_NEEDED)
    return WrappedPlan(
        config=read_wrapped_config(fields, source),
        model_type=str(fields.get("model_type")),
        vision_fields=dict(fields["vision_config"]),
        source=source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedPlan:
    """See TowerPlan."""

    config: WrappedConfig
    model_type: str
    vision_fields: Mapping[str, Any]
    source: str

    def largest_image(
        self,
        fields: Mapping[str, Any],
        kwargs: Mapping[str, Any],
        width: int | None,
        height: int | None,
    ) -> LargestImage:
        processor, unit = Qwen2VLProcessor(fields, kwargs), self.config.unit
        num_tokens = processor.most_tokens(width, height)
        return LargestImage(
            num_tokens=num_tokens,
            pixel_bytes=num_tokens * 3 * unit**2,
            run_shape=(unit, num_tokens * unit),  # the memory depends on the area alone
        )

    def images_at_once(self, device: torch.device) -> int:
        return 1

    def weight_bytes(self, linear: type[LinearBackend], spec: LinearSpec) -> int:
        return self.config.num_parameters * spec.dtype.itemsize

    def load(
        self,
        files: TowerFiles,
        *,
        dtype: torch.dtype,
        device: torch.device,
        linear: LinearBackend,
        attention: type[AttentionBackend] | None,
    ) -> Tower:
        from .tower import load_wrapped  # which imports transformers

        return load_wrapped(
            files, self.config, self.model_type, self.vision_fields, dtype=dtype, device=device
        )
