"""Makes the kinds of a model's layers from which of them have a window and which are rotated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .model_config import LayerKind
from .rope_config import RopeConfig


def make_layers(
    is_local: Sequence[bool],
    is_rotated: Sequence[bool],
    window: int | None,
    rope: RopeConfig,
    local_rope: RopeConfig,
) -> dict[str, Any]:
    """Return the fields of ModelConfig about how layers attend: one kind per layer if they differ.

    `local_rope` is the rotation of the layers that have the window.
    """
    kinds = tuple(
        LayerKind(
            sliding_window=window if local else None,
            rope=(local_rope if local else rope) if rotated else None,
        )
        for local, rotated in zip(is_local, is_rotated, strict=True)
    )
    if len(set(kinds)) > 1 or not all(is_rotated) or not kinds:
        return {"rope": rope, "layers": kinds}
    return {"rope": kinds[0].rope, "sliding_window": kinds[0].sliding_window}


def every_nth(interval: int, num_layers: int) -> Sequence[bool]:
    """Return whether a layer is the last of `interval` layers: false for all layers if it is 0."""
    return [interval > 0 and (index + 1) % interval == 0 for index in range(num_layers)]
