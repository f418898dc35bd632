"""Reads from a config.json how its layers attend: which have a window, and which are rotated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....core.errors import ConfigError
from ..config.architectures import Architecture, Window
from ..config.fields import Fields
from ..config.layer_kinds import every_nth, make_layers
from ..config.rope_config import RopeConfig, stretched_context

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_layers(
    fields: Fields, row: Architecture, rope: RopeConfig, local_rope: RopeConfig
) -> dict[str, Any]:
    """Return the fields of ModelConfig about how layers attend.

    `local_rope` is the rotation of layers with a window. Raises ConfigError.
    """
    num_layers = fields.integer("num_hidden_layers")
    is_rotated = _rotated(fields, row, num_layers)
    is_local = _local(fields, row, is_rotated)
    window = None if row.window is Window.NONE else fields.optional_integer("sliding_window")
    context = stretched_context(rope, fields.integer("max_position_embeddings"))
    if window is not None and window >= context:
        window = None
    return make_layers(is_local, is_rotated, window, rope, local_rope)


def _rotated(fields: Fields, row: Architecture, num_layers: int) -> Sequence[bool]:
    if row.rope_interval is None:
        return [True] * num_layers
    listed = fields.get("no_rope_layers")
    if listed is None:
        interval = fields.integer("no_rope_layer_interval", row.rope_interval)
        return [not is_nth for is_nth in every_nth(interval, num_layers)]
    if not _lists(listed, num_layers, (0, 1)):
        raise ConfigError(
            f"no_rope_layers in {fields.source} must have 1 or 0 for each of the {num_layers} "
            f"layers, got {listed!r:.80}"
        )
    return [bool(rotates) for rotates in listed[:num_layers]]


def _local(fields: Fields, row: Architecture, is_rotated: Sequence[bool]) -> Sequence[bool]:
    """Return which layers have the window. Raises ConfigError for layers of another kind."""
    num_layers = len(is_rotated)
    is_switched = row.window in (Window.SWITCHED, Window.WITHOUT_ROPE)
    if is_switched and not fields.flag("use_sliding_window", False):
        return [False] * num_layers
    listed = fields.get("layer_types") if row.window is not Window.NONE else None
    if listed is None:
        return _RULES[row.window](fields, row, is_rotated)
    if not _lists(listed, num_layers, (_FULL, _SLIDING)):
        raise ConfigError(
            f"layer_types in {fields.source} must have {_FULL} or {_SLIDING} for each of the "
            f"{num_layers} layers, got {listed!r:.80}"
        )
    return [kind == _SLIDING for kind in listed[:num_layers]]


def _lists(value: object, num_layers: int, known: tuple[object, ...]) -> bool:
    """Whether it is a list with one of the known values for every layer."""
    if not isinstance(value, list) or len(value) < num_layers:
        return False
    return all(item in known for item in value)


def _from_layer(fields: Fields, row: Architecture, is_rotated: Sequence[bool]) -> Sequence[bool]:
    first = fields.integer("max_window_layers", 28)
    return [index >= first for index in range(len(is_rotated))]


def _pattern(fields: Fields, row: Architecture, is_rotated: Sequence[bool]) -> Sequence[bool]:
    interval = fields.integer("sliding_window_pattern", row.window_pattern)
    return [not is_nth for is_nth in every_nth(interval, len(is_rotated))]


_RULES: Mapping[Window, Callable[[Fields, Architecture, Sequence[bool]], Sequence[bool]]] = {
    Window.NONE: lambda fields, row, is_rotated: [False] * len(is_rotated),
    Window.ALL: lambda fields, row, is_rotated: [True] * len(is_rotated),
    Window.SWITCHED: _from_layer,
    Window.WITHOUT_ROPE: lambda fields, row, is_rotated: [not rotates for rotates in is_rotated],
    Window.PATTERN: _pattern,
}
"""The layers that have the window when config.json has no `layer_types`."""
