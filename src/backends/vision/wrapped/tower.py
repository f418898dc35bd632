"""Computes a vision tower with transformers' own module.

Shape suffixes: n images, y, x pixels, c channels, r tokens of an image, t hidden size of the text
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
)

from ....core.errors import ConfigError
from ...machine.torch_threads import all_torch_threads
from ...weights.config.fields import one_line
from ..source import TowerFiles
from .config import WrappedConfig

_CLASSES: Mapping[str, Any] = {"qwen2_5_vl": Qwen2_5_VisionTransformerPretrainedModel}
"""By model type, transformers' class of the tower. Its inputs are patches and grids, and its result
has all that the text model gets of an image."""
_CONFIGS: Any = CONFIG_MAPPING
"""Any: its type in transformers is wrong."""
_PREFIX = "visual."
"""The beginning of the names of the tower's tensors."""


class WrappedTower:
    """See Tower."""

    images_at_once = 1

    def __init__(self, module: Any, config: WrappedConfig, device: torch.device) -> None:
        self._module, self._config, self.device = module, config, device
        self._levels_vc = config.scale.levels().to(device=device, dtype=module.dtype)

    @property
    def num_bytes(self) -> int:
        return sum(int(one.nbytes) for one in self._module.parameters())

    @property
    def unit(self) -> int:
        """The sides of the square that becomes one row, in pixels."""
        return self._config.unit

    @property
    def patch_size(self) -> int:
        """The sides of a patch, in pixels."""
        return self._config.patch_size

    def encode(self, pixels_nyxc: torch.Tensor) -> torch.Tensor:
        num_images, height, width, _ = pixels_nyxc.shape
        size = self._config.patch_size
        grid = torch.tensor([[1, height // size, width // size]] * num_images, device=self.device)
        # Without this, torch has one thread while native kernels compute the text model.
        with all_torch_threads():
            rows = self._module(self.patches(pixels_nyxc), grid_thw=grid).pooler_output
        rows_nrt: torch.Tensor = rows.view(num_images, -1, rows.shape[1])
        return rows_nrt

    def patches(self, pixels_nyxc: torch.Tensor) -> torch.Tensor:
        """The scaled values of all patches, [patches, c * frames * y * x]. The patches of a square
        that becomes one token are next to each other."""
        config = self._config
        size, merged, frames = (
            config.patch_size,
            config.spatial_merge_size,
            config.temporal_patch_size,
        )
        num_images, height, width, _ = pixels_nyxc.shape
        channels_c = torch.arange(3, device=self.device)
        # The bytes are copied to the device first. As int64 indices they are eight times as large.
        numbers_nyxc = self._levels_vc[pixels_nyxc.to(self.device).long(), channels_c]
        rows, columns = height // size // merged, width // size // merged
        squares = numbers_nyxc.view(num_images, rows, merged, size, columns, merged, size, 3)
        patches = squares.permute(0, 1, 4, 2, 5, 7, 3, 6).unsqueeze(6)
        shape = *patches.shape[:6], frames, *patches.shape[7:]
        return patches.expand(shape).reshape(-1, 3 * frames * size**2)


def load_wrapped(
    files: TowerFiles,
    config: WrappedConfig,
    model_type: str,
    vision_fields: Mapping[str, Any],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> WrappedTower:
    """Build transformers' tower, and read its weights. Raises ConfigError when transformers cannot
    build it, and when a tensor is missing or has the wrong shape."""
    kind = _CLASSES[model_type]
    try:
        made = _CONFIGS[model_type].from_dict({"vision_config": dict(vision_fields)})
        with torch.device("meta"):
            empty = kind._from_config(made.vision_config)
    except Exception as error:  # transformers raises many kinds
        raise ConfigError(
            f"{files.path}: transformers {transformers.__version__} cannot build the vision tower: "
            f"{one_line(error)}"
        ) from error
    weights = {}
    for name, expected in empty.state_dict().items():
        stored = files.stored(_PREFIX + name)
        if tuple(stored.shape) != tuple(expected.shape):
            raise ConfigError(
                f"{_PREFIX + name} in {files.path} has shape {list(stored.shape)}, expected "
                f"{list(expected.shape)}"
            )
        tensor = files.tensor(_PREFIX + name)
        weights[name] = tensor.to(device=device, dtype=dtype, copy=True)
    empty.load_state_dict(weights, assign=True)
    _fill_buffers(empty, made.vision_config, device)
    return WrappedTower(empty.eval().requires_grad_(False), config, device)


def _fill_buffers(module: Any, config: Any, device: torch.device) -> None:
    """Compute the frequencies of the rotation, which files do not contain."""
    rotation = type(module.rotary_pos_emb)(config)
    module.rotary_pos_emb = rotation.to(device)
    left = [name for name, one in module.named_buffers() if one.device.type == "meta"]
    if left:
        raise ConfigError(
            f"transformers {transformers.__version__} has a vision tower with other parts than "
            f"expected ({', '.join(left[:3])})"
        )
