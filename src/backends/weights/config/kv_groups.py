"""Groups of layers that share the blocks of the KV cache.

In a model with windows in some layers, each group has block tables of its own, so that a request
keeps in each group only the blocks that the group's window has not passed. A block holds as many
layers as the largest group, and may serve any group: the groups share the memory as they need it.
The scheme is that of vLLM's hybrid KV cache manager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .model_config import ModelConfig

MAX_GROUPS = 8
"""Each group costs a block table per request, and metadata per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroups:
    """The groups of a model's layers."""

    windows: tuple[int | None, ...]
    """Per group, the number of tokens that a query sees; see `ModelInfo.kv_windows`."""
    group_of_layer: tuple[int, ...]
    place_of_layer: tuple[int, ...]
    """Per layer, its place among the layers of a block."""

    @property
    def layers_per_block(self) -> int:
        """Number of layers whose keys and values one block holds."""
        return 1 + max(self.place_of_layer)


def one_group(model: ModelConfig, *, keeps_all: bool = False) -> KVGroups:
    """All layers in one group. A request keeps the blocks that any layer sees, or with `keeps_all`
    the blocks of all tokens."""
    return KVGroups(
        windows=(None if keeps_all else model.kv_window,),
        group_of_layer=(0,) * model.num_layers,
        place_of_layer=tuple(range(model.num_layers)),
    )


def group_layers(model: ModelConfig, max_model_len: int | None) -> KVGroups:
    """Group the layers by their windows. Large groups are divided so that little memory is lost.

    A window of `max_model_len` tokens or more counts as none. None: the model's maximum.
    """
    longest = min(max_model_len or model.max_position_embeddings, model.max_position_embeddings)
    kinds: dict[int | None, list[int]] = {}
    for layer, kind in enumerate(model.layer_kinds):
        window = kind.sliding_window
        is_seen = window is not None and window < longest
        kinds.setdefault(window if is_seen else None, []).append(layer)
    if len(kinds) == 1:
        return one_group(model)
    return _divide(kinds, _choose_size({window: len(kinds[window]) for window in kinds}))


def _divide(kinds: Mapping[int | None, Sequence[int]], size: int) -> KVGroups:
    """Divide the layers of each window into groups of at most `size` layers."""
    windows: list[int | None] = []
    places: dict[int, tuple[int, int]] = {}
    for window, layers in kinds.items():
        for first in range(0, len(layers), size):
            group = layers[first : first + size]
            places |= {layer: (len(windows), place) for place, layer in enumerate(group)}
            windows.append(window)
    groups, offsets = zip(*(places[layer] for layer in sorted(places)), strict=True)
    return KVGroups(windows=tuple(windows), group_of_layer=groups, place_of_layer=offsets)


def _choose_size(num_layers: Mapping[int | None, int]) -> int:
    """The number of layers of a block that wastes the least memory.

    Groups without a window count twice: a long sequence has most of its blocks there.
    """

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in num_layers.values())

    def cost(size: int) -> int:
        return size * (num_groups(size) + -(-num_layers.get(None, 0) // size))

    sizes = [n for n in range(1, max(num_layers.values()) + 1) if num_groups(n) <= MAX_GROUPS]
    return min(sizes, key=lambda size: (cost(size), -size))
