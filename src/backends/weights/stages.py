"""Divides a model into stages, and shows one stage as if it were a whole model.

Each stage has some consecutive layers. The first one also has the embedding, the last one the last
norm and the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from ...core.errors import ConfigError
from .checkpoint import Checkpoint
from .checkpoint_decorator import CheckpointDecorator
from .packed import StoredTensor, Weights

_LAYER = "model.layers."
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """One of the stages of a model, and its layers."""

    stage: int
    num_stages: int
    layers: range

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1


class StagedCheckpoint(CheckpointDecorator):
    """Shows one stage of a checkpoint, with its layers counted from 0."""

    def __init__(self, inner: Checkpoint, own: StageLayers) -> None:
        super().__init__(inner)
        config, first, end = inner.config, own.layers.start, own.layers.stop
        self.config = replace(
            config,
            num_layers=len(own.layers),
            layers=config.layers[first:end],
            earlier_layers=config.layer_kinds[:first],
            later_layers=config.layer_kinds[end:],
            num_stages=own.num_stages,
            tie_word_embeddings=False,
        )
        self._names = _names_of(inner, own)
        """The inner checkpoint's names, by those that are shown."""

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._names)

    def stored(self, name: str) -> StoredTensor:
        return self._inner.stored(self._names.get(name, name))

    def tensor(self, name: str) -> torch.Tensor:
        return self._inner.tensor(self._names.get(name, name))

    def matrix(self, name: str) -> Weights:
        return self._inner.matrix(self._names.get(name, name))


def divide_into_stages(checkpoint: Checkpoint, num_stages: int) -> tuple[StageLayers, ...]:
    """Choose the layers of each stage, so that the most expensive one costs as little as possible.

    The cost of a stage is the size of its weights in the files. Raises ConfigError if the model
    cannot be divided.
    """
    config = checkpoint.config
    if num_stages > config.num_layers:
        raise ConfigError(
            f"--pipeline-parallel-size {num_stages}: the model has only {config.num_layers} layers"
        )
    ends = _divide(_layer_costs(checkpoint), num_stages)
    return tuple(
        StageLayers(stage=stage, num_stages=num_stages, layers=range(first, end))
        for stage, (first, end) in enumerate(zip((0, *ends), ends, strict=False))
    )


def _names_of(checkpoint: Checkpoint, own: StageLayers) -> dict[str, str]:
    found = {}
    for name in checkpoint.tensor_names():
        layer = _layer_of(name)
        if layer is not None and layer in own.layers:
            rest = name.removeprefix(f"{_LAYER}{layer}")
            found[f"{_LAYER}{layer - own.layers.start}{rest}"] = name
        elif layer is None and (own.is_first if name == _EMBEDDING else own.is_last):
            found[name] = name
    if own.is_last and _HEAD not in found and checkpoint.config.tie_word_embeddings:
        found[_HEAD] = _EMBEDDING
    return found


def _layer_of(name: str) -> int | None:
    """The layer of a tensor; None if it is in no layer."""
    number = name.removeprefix(_LAYER).partition(".")[0]
    return int(number) if name.startswith(_LAYER) and number.isdecimal() else None


def _layer_costs(checkpoint: Checkpoint) -> list[int]:
    """The bytes of each layer. The embedding counts for the first one, all else for the last."""
    config = checkpoint.config
    costs = [0] * config.num_layers
    names = set(checkpoint.tensor_names())
    for name in names:
        layer = _layer_of(name)
        place = (0 if name == _EMBEDDING else -1) if layer is None else layer
        if place < config.num_layers:
            costs[place] += checkpoint.stored(name).num_bytes
    if _HEAD not in names and config.tie_word_embeddings:
        costs[-1] += checkpoint.stored(_EMBEDDING).num_bytes
    return costs


def _divide(costs: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """The end of each stage's layers, with the smallest maximum cost of a stage."""

    @cache
    def best(first: int, num_left: int) -> tuple[int, tuple[int, ...]]:
        if num_left == 1:
            return sum(costs[first:]), (len(costs),)
        found = []
        for end in range(first + 1, len(costs) - num_left + 2):
            most, ends = best(end, num_left - 1)
            found.append((max(sum(costs[first:end]), most), (end, *ends)))
        return min(found)

    return best(0, num_stages)[1]
