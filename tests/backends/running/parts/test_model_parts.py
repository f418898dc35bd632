"""What the engine takes from a model besides its forward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.models.base import LoadOptions, Model, ModelSpec
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.running.parts.model_parts import ModelParts, choose_spec, load_parts
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.config.features import Features
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

WITH_SINKS = replace(CONFIG, features=Features(attention_sinks=True))


class Foreign:
    """A model that is no Decoder, as of a plugin."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ForeignWithSinks(Foreign):
    @property
    def sinks(self) -> list[torch.Tensor]:
        return [torch.ones(WITH_SINKS.num_heads)] * WITH_SINKS.num_layers


def load(wrap: type[Foreign]) -> ModelParts:
    class Models(NativeModels):
        name = "own"

        def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Any:
            return wrap(super().load(random_checkpoint(CONFIG, 0), options))

    checkpoint = random_checkpoint(WITH_SINKS, 0)
    config = EngineConfig(device="cpu", dtype="float32")
    backends = backends_with(TorchAttention)
    spec = choose_spec(checkpoint, config, backends, no_progress)
    impl = Models(ModelSpec(path=checkpoint.path, fields={}))
    return load_parts(checkpoint, config, backends, spec, no_progress, impl)


def test_a_plugin_s_model_may_have_sinks() -> None:
    attention: Any = load(ForeignWithSinks).attention
    assert [sinks.tolist() for sinks in attention._sinks] == [
        [1.0] * WITH_SINKS.num_heads
    ] * WITH_SINKS.num_layers


def test_a_model_that_lacks_the_sinks_of_its_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="'own' says that heads have sinks, but its model has 0"):
        load(Foreign)
