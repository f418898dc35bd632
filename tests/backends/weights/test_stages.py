"""Models are divided into stages of about the same cost, and each tensor is in one stage."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG
from tokenmill.backends.weights.config.model_config import LayerKind, ModelConfig
from tokenmill.backends.weights.stages import StagedCheckpoint, StageLayers, divide_into_stages
from tokenmill.core.errors import ConfigError

DEEP = replace(CONFIG, num_layers=7, tie_word_embeddings=False)


def stages_of(config: ModelConfig, num_stages: int) -> list[StagedCheckpoint]:
    checkpoint = random_checkpoint(config, 1)
    return [StagedCheckpoint(checkpoint, own) for own in divide_into_stages(checkpoint, num_stages)]


def bytes_of(stage: StagedCheckpoint) -> int:
    return sum(stage.stored(name).num_bytes for name in stage.tensor_names())


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("num_stages", [2, 3, 7])
def test_each_tensor_is_in_one_stage(num_stages: int, is_tied: bool) -> None:
    config = replace(DEEP, tie_word_embeddings=is_tied)
    stages = stages_of(config, num_stages)
    total = sum(len(stage.tensor_names()) for stage in stages)
    assert total == len(random_checkpoint(config, 1).tensor_names()) + is_tied
    assert sum(stage.config.num_layers for stage in stages) == 7
    assert [stage.config.has_embedding for stage in stages] == [True] + [False] * (num_stages - 1)
    assert [stage.config.has_head for stage in stages] == [False] * (num_stages - 1) + [True]
    assert "lm_head.weight" in stages[-1].tensor_names()


def test_layers_are_counted_from_zero_in_each_stage() -> None:
    whole = random_checkpoint(DEEP, 1)
    own = StageLayers(stage=1, num_stages=3, layers=range(2, 5))
    middle = StagedCheckpoint(whole, own)
    name = "model.layers.{}.mlp.up_proj.weight"
    assert middle.tensor(name.format(0)).equal(whole.tensor(name.format(2)))
    assert name.format(3) not in middle.tensor_names()


def test_no_border_can_be_moved_to_make_the_largest_stage_smaller() -> None:
    """The head is large: the last stage has few layers."""
    config = replace(DEEP, vocab_size=2000)
    checkpoint = random_checkpoint(config, 1)
    found = divide_into_stages(checkpoint, 3)
    most = max(bytes_of(StagedCheckpoint(checkpoint, own)) for own in found)
    assert len(found[1].layers) > max(len(found[0].layers), len(found[2].layers))
    for before, after in pairwise(found):
        for end in (before.layers.stop - 1, before.layers.stop + 1):
            moved = (
                replace(before, layers=range(before.layers.start, end)),
                replace(after, layers=range(end, after.layers.stop)),
            )
            if not all(own.layers for own in moved):
                continue
            others = [own for own in found if own not in (before, after)]
            sizes = [bytes_of(StagedCheckpoint(checkpoint, own)) for own in (*moved, *others)]
            assert max(sizes) >= most


def test_a_stage_knows_the_layers_of_the_others() -> None:
    kinds = tuple(LayerKind(sliding_window=8 * (i % 3) or None) for i in range(7))
    stages = stages_of(replace(DEEP, layers=kinds), 3)
    for stage in stages:
        assert stage.config.all_layer_kinds == kinds
        assert stage.config.layer_kinds == stage.config.layers
    assert sum((stage.config.layers for stage in stages), ()) == kinds


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="--pipeline-parallel-size 8: the model has only 7 lay"):
        divide_into_stages(random_checkpoint(DEEP, 1), 8)
