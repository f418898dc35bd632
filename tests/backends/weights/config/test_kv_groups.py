"""How the layers of a model share the blocks of the KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from tokenmill.backends.weights.config.kv_groups import KVGroups, group_layers, one_group
from tokenmill.backends.weights.config.model_config import LayerKind, ModelConfig

from ...tiny import CONFIG

WINDOW = 32
LONG = 1000


def model_of(windows: Sequence[int | None]) -> ModelConfig:
    kinds = tuple(LayerKind(sliding_window=window, rope=CONFIG.rope) for window in windows)
    return replace(CONFIG, num_layers=len(kinds), layers=kinds, max_position_embeddings=LONG)


def every_nth(num_layers: int, interval: int) -> list[int | None]:
    """Windows in all layers but every n-th."""
    return [None if (i + 1) % interval == 0 else WINDOW for i in range(num_layers)]


@pytest.mark.parametrize(
    ("windows", "num_kept", "num_windowed", "layers_per_block"),
    [
        (every_nth(26, 6), 1, 6, 4),  # Gemma 3, 1B
        (every_nth(34, 6), 1, 6, 5),  # 4B
        (every_nth(48, 6), 1, 5, 8),  # 12B
        (every_nth(62, 6), 1, 5, 11),  # 27B
        (every_nth(24, 2), 1, 1, 12),  # gpt-oss, 20B
        (every_nth(42, 2), 1, 1, 21),  # Gemma 2, 9B
        ([None] * 27 + [WINDOW], 7, 1, 4),
        ([None, 16, 32, None, 16, 32], 1, 2, 2),
    ],
)
def test_layers_with_one_window_share_groups_that_waste_little(
    windows: list[int | None], num_kept: int, num_windowed: int, layers_per_block: int
) -> None:
    groups = group_layers(model_of(windows), None)
    assert groups.layers_per_block == layers_per_block
    assert groups.windows.count(None) == num_kept
    assert len(groups.windows) == num_kept + num_windowed
    assert [groups.windows[group] for group in groups.group_of_layer] == windows
    assert_apart(groups)


def assert_apart(groups: KVGroups) -> None:
    """No two layers of a group have the same place in a block."""
    places = list(zip(groups.group_of_layer, groups.place_of_layer, strict=True))
    assert len(set(places)) == len(places)


def divide(model: ModelConfig, num_stages: int) -> list[ModelConfig]:
    """Stages with equally many layers."""
    kinds, number = model.layer_kinds, model.num_layers
    return [
        replace(
            model,
            num_layers=end - first,
            layers=model.layers[first:end],
            earlier_layers=kinds[:first],
            later_layers=kinds[end:],
            num_stages=num_stages,
        )
        for first, end in pairwise(number * stage // num_stages for stage in range(num_stages + 1))
    ]


@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize(
    "windows",
    [every_nth(26, 6), every_nth(34, 6), every_nth(24, 2), [None] * 7 + [WINDOW] * 4],
    ids=["gemma-3-1b", "gemma-3-4b", "gpt-oss-20b", "last-layers"],
)
def test_every_stage_has_the_groups_of_the_whole_model(
    windows: list[int | None], num_stages: int
) -> None:
    stages = [group_layers(stage, None) for stage in divide(model_of(windows), num_stages)]
    assert len({stage.windows for stage in stages}) == 1
    found = [group for stage in stages for group in stage.group_of_layer]
    assert [stages[0].windows[group] for group in found] == windows
    for stage in stages:
        assert_apart(stage)
        assert stage.layers_per_block == max(Counter(stage.group_of_layer).values())


@pytest.mark.parametrize(
    ("windows", "num_stages", "num_groups", "layers_per_block"),
    [
        (every_nth(26, 6), 2, 7, 2),  # Gemma 3, 1B
        (every_nth(26, 6), 3, 5, 2),
        (every_nth(34, 6), 2, 6, 3),  # 4B
        (every_nth(34, 6), 4, 5, 2),
        (every_nth(62, 6), 2, 7, 5),  # 27B
        (every_nth(24, 2), 3, 2, 4),  # gpt-oss, 20B
    ],
)
def test_blocks_of_stages_have_few_places_without_a_layer(
    windows: list[int | None], num_stages: int, num_groups: int, layers_per_block: int
) -> None:
    """Each stage has a part of each group, not all layers of a part of the groups."""
    stages = [group_layers(stage, None) for stage in divide(model_of(windows), num_stages)]
    assert {len(stage.windows) for stage in stages} == {num_groups}
    assert max(stage.layers_per_block for stage in stages) == layers_per_block
    most_layers = -(-len(windows) // num_stages)
    assert num_groups * layers_per_block < 1.15 * most_layers


@pytest.mark.parametrize("length", [WINDOW, None])
def test_a_stage_without_a_window_knows_those_of_the_others(length: int | None) -> None:
    first, second = divide(model_of([WINDOW, WINDOW, None, None]), 2)
    windows = (WINDOW, None) if length is None else (None,)
    assert group_layers(first, length).windows == group_layers(second, length).windows == windows
    assert one_group(first).windows == one_group(second).windows == (None,)


def test_a_stage_keeps_what_the_longest_window_of_the_model_sees() -> None:
    """Both windows count as none, so all layers are one group."""
    for stage in divide(model_of([WINDOW, 2 * WINDOW]), 2):
        assert group_layers(stage, WINDOW).windows == (2 * WINDOW,)


@pytest.mark.parametrize("windows", [[None] * 5, [WINDOW] * 5])
def test_layers_that_are_alike_are_one_group(windows: list[int | None]) -> None:
    model = model_of(windows)
    groups = group_layers(model, None)
    assert groups == one_group(model)
    assert (groups.windows, groups.layers_per_block) == ((windows[0],), 5)


def test_a_window_as_long_as_the_longest_sequence_is_none() -> None:
    model = model_of(every_nth(6, 3))
    assert len(group_layers(model, WINDOW + 1).windows) == 3
    for length in (WINDOW, WINDOW - 1):
        assert group_layers(model, length) == one_group(model)
    assert one_group(model).windows == (None,)


def test_one_group_may_keep_the_blocks_behind_the_windows() -> None:
    model = model_of([WINDOW, 16])
    assert one_group(model).windows == (WINDOW,)
    assert one_group(model, keeps_all=True).windows == (None,)
