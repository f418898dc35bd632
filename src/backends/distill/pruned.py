"""A view of a target with few layers and few logits: the initial weights of a draft model.

Shape suffixes: d logits of the draft model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ...core.errors import ConfigError
from ..weights.checkpoint import Checkpoint
from ..weights.config.model_config import ModelConfig
from ..weights.draft_vocabulary import DRAFT_TO_TARGET, as_offsets
from ..weights.packed import StoredTensor

_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..+)")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class PrunedCheckpoint:
    """A Checkpoint with some of the target's layers and logits. Weights are dequantized."""

    def __init__(
        self, target: Checkpoint, layers: Sequence[int], token_ids_d: torch.Tensor | None
    ) -> None:
        """`layers` are the indices of the target's layers to keep. `token_ids_d` are the tokens
        that get logits, ascending; None for all.

        Raises ConfigError for a layer that the target lacks.
        """
        for layer in layers:
            if not 0 <= layer < target.config.num_layers:
                raise ConfigError(
                    f"{target.name} has layers 0 to {target.config.num_layers - 1}, not {layer}"
                )
        self.path: Path = target.path
        self.config: ModelConfig = replace(
            target.config,
            num_layers=len(layers),
            layers=tuple(target.config.layers[i] for i in layers) if target.config.layers else (),
            tie_word_embeddings=target.config.tie_word_embeddings and token_ids_d is None,
            draft_vocab_size=None if token_ids_d is None else len(token_ids_d),
        )
        self._target = target
        self._token_ids_d = token_ids_d
        self._sources = _sources(target, layers)
        if token_ids_d is not None:
            self._sources.setdefault(_HEAD, _EMBEDDING)
            self._sources[DRAFT_TO_TARGET] = DRAFT_TO_TARGET

    @property
    def name(self) -> str:
        return f"{self._target.name}-draft"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    @property
    def quantization(self) -> None:
        return None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._target.eos_token_ids

    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        return {}

    @property
    def files(self) -> Mapping[Path, int]:
        """Empty: the vocabulary and the layers differ from the target's files."""
        return {}

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._sources)

    def stored(self, name: str) -> StoredTensor:
        tensor = self.tensor(name)
        return StoredTensor(tuple(tensor.shape), tensor.dtype, tensor.nbytes)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor with this name in the pruned model, from the layer that is kept there."""
        if name not in self._sources:
            raise ConfigError(f"{self.name} lacks the tensor {name}")
        if self._token_ids_d is not None and name == DRAFT_TO_TARGET:
            return as_offsets(self._token_ids_d)
        tensor = self._target.tensor(self._sources[name])
        if self._token_ids_d is not None and name == _HEAD:
            return tensor.index_select(0, self._token_ids_d)
        return tensor

    def matrix(self, name: str) -> torch.Tensor:
        """See Checkpoint: trained weights are not packed."""
        return self.tensor(name)

    def release(self) -> None:
        self._target.release()


def _sources(target: Checkpoint, layers: Sequence[int]) -> dict[str, str]:
    """Map the pruned model's tensor names to the target's."""
    names = target.tensor_names()
    sources = {name: name for name in names if not _LAYER.fullmatch(name)}
    for place, layer in enumerate(layers):
        begin = f"model.layers.{layer}."
        for name in names:
            if name.startswith(begin):
                sources[f"model.layers.{place}.{name.removeprefix(begin)}"] = name
    return sources
