"""Groups of layers that share the blocks of the KV cache.

In a model with windows in some layers, each group has block tables of its own, so that a request
keeps in each group only the blocks that the group's window has not passed. A block has room
for the layers of the largest group, and may serve any group: the groups share the memory as they
need it. The scheme is that of vLLM's hybrid KV cache manager.

All stages of a model have the groups of the whole model, and so the same block tables. A stage's
block holds only its own layers. A stage may have no layer of some groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .model_config import ModelConfig

MAX_GROUPS = 8
"""Each group costs a block table per request, and metadata per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroups:
    """The groups of a model's layers, or of a stage's."""

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
    return _place((None if keeps_all else model.kv_window,), (0,) * model.num_layers)


def group_layers(model: ModelConfig, max_model_len: int | None) -> KVGroups:
    """Group the layers by their windows. Large groups are divided so that little memory is lost.

    A window of `max_model_len` tokens or more counts as none. None: the model's maximum.
    """
    longest = min(max_model_len or model.max_position_embeddings, model.max_position_embeddings)
    kinds: dict[int | None, list[int]] = {}
    for layer, kind in enumerate(model.all_layer_kinds):
        window = kind.sliding_window
        is_seen = window is not None and window < longest
        kinds.setdefault(window if is_seen else None, []).append(layer)
    if len(kinds) == 1:
        return one_group(model)
    numbers = {window: len(kinds[window]) for window in kinds}
    size = _choose_size(numbers, model.num_stages)
    windows, groups = _divide(kinds, size)
    first = len(model.earlier_layers)
    return _place(windows, groups[first : first + model.num_layers])


def _divide(
    kinds: Mapping[int | None, Sequence[int]], size: int
) -> tuple[tuple[int | None, ...], Sequence[int]]:
    """Divide the layers of each window into groups of at most `size` layers.

    Returns the window of each group, and the group of each layer. Consecutive layers
    of a window go to its groups in turn. So each stage has about the same number of layers of each
    group, and its blocks are full.
    """
    windows: list[int | None] = []
    group_of: dict[int, int] = {}
    for window, layers in kinds.items():
        num_groups = -(-len(layers) // size)
        for index, layer in enumerate(layers):
            group_of[layer] = len(windows) + index % num_groups
        windows += [window] * num_groups
    return tuple(windows), [group_of[layer] for layer in sorted(group_of)]


def _place(windows: tuple[int | None, ...], group_of_layer: Sequence[int]) -> KVGroups:
    """Number the layers of each group."""
    num_layers = [0] * len(windows)
    places = []
    for group in group_of_layer:
        places.append(num_layers[group])
        num_layers[group] += 1
    return KVGroups(
        windows=windows, group_of_layer=tuple(group_of_layer), place_of_layer=tuple(places)
    )


def _choose_size(num_layers: Mapping[int | None, int], num_stages: int) -> int:
    """The number of layers of a group that wastes the least memory. A block of each of `num_stages`
    stages has an equal share of them, rounded up.

    Groups without a window count twice: a long sequence has most of its blocks there.
    """

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in num_layers.values())

    def cost(size: int) -> int:
        per_block = -(-size // num_stages)
        return per_block * (num_groups(size) + -(-num_layers.get(None, 0) // size))

    sizes = [n for n in range(1, max(num_layers.values()) + 1) if num_groups(n) <= MAX_GROUPS]
    return min(sizes, key=lambda size: (cost(size), -size))
