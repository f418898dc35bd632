"""Layers of one model with different windows: each is served by the backend of its spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionBatch, AttentionSpec
from tokenmill.backends.attention.choice import choose_attention_backend
from tokenmill.backends.attention.mixed import (
    MixedAttention,
    make_attention,
    reasons_against_layers,
)
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.registry import Registry
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.testing.conformance.attention.reference import reference_attention

from ...core.plugin_packages import Packages
from .steps import BATCHES, SPEC, Step
from .test_choice import WITHOUT_OWN

LAYERS = [replace(SPEC, sliding_window=window) for window in (11, None, 11, 37)]


class Square(TorchAttention):
    """Keeps windows and full contexts in caches of different shapes."""

    name = "square"

    def kv_cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        return (num_blocks if self._spec.sliding_window else 2 * num_blocks,)


class Windowless(TorchAttention):
    """Knows no windows."""

    name = "windowless"

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        return ["it has no windows"] if spec.sliding_window else []


@dataclass(frozen=True)
class Offers:
    """A plugin with two backends; the first knows no windows."""

    TOKENMILL_API = (1, 1)

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.ATTENTION_BACKEND, "windowless", lambda: Windowless)
        registry.offer(kinds.ATTENTION_BACKEND, "capable", lambda: TorchAttention)


@pytest.mark.parametrize("layer", range(len(LAYERS)))
def test_each_layer_attends_as_its_spec_says(layer: int) -> None:
    attention = make_attention(TorchAttention, LAYERS)
    step = Step(lambda spec: attention, SPEC, *BATCHES["mixed"])  # type: ignore[arg-type]
    step.backend = Only(attention, layer)  # type: ignore[assignment]
    for actual, (q, k, v) in zip(step.run(), zip(step.q, step.k, step.v, strict=True), strict=True):
        expected = reference_attention(LAYERS[layer], q, k, v)
        torch.testing.assert_close(actual.double(), expected, rtol=2e-6, atol=2e-6)


class Only:
    """Computes every layer as one of them."""

    def __init__(self, attention: MixedAttention, layer: int) -> None:
        self.build_metadata: Callable[..., Any] = attention.build_metadata
        self._attention, self._layer = attention, layer

    def forward(self, _: int, *arguments: Any) -> None:
        self._attention.forward(self._layer, *arguments)


class Echo(TorchAttention):
    """Its metadata is the batch that it got."""

    def build_metadata(self, batch: AttentionBatch) -> Any:
        return batch


def test_each_group_of_layers_has_a_backend_that_gets_the_batch_of_the_group() -> None:
    """The layers of the second and third group have the same spec."""
    specs = [LAYERS[1], LAYERS[0], LAYERS[0], LAYERS[0]]
    attention = make_attention(Echo, specs, [0, 1, 2, 1])
    first = Step(TorchAttention, SPEC, *BATCHES["mixed"]).batch
    others = [replace(first, num_decodes=99), replace(first, num_decodes=98)]
    metadata = attention.build_metadata(replace(first, other_groups=others))
    assert [one.num_decodes for one in metadata] == [first.num_decodes, 99, 98]
    layers = attention.layers
    assert layers[1] is layers[3] and len({id(layer) for layer in layers}) == 3


def test_layers_of_a_later_group_get_its_batch_even_without_layers_of_the_first() -> None:
    """A stage may have no layer of some groups."""
    attention = make_attention(Echo, [LAYERS[0]] * 2, [1, 1])
    first = Step(TorchAttention, SPEC, *BATCHES["mixed"]).batch
    other = replace(first, num_decodes=99)
    assert attention.build_metadata(replace(first, other_groups=[other])) == (other,)


def test_a_model_with_equal_layers_has_the_backend_itself() -> None:
    assert type(make_attention(TorchAttention, [SPEC] * 3)) is TorchAttention


def test_caches_of_different_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="'square' gives a KV block different shapes"):
        make_attention(Square, LAYERS)


def test_a_reason_against_one_kind_of_layer_is_a_reason_against_the_model() -> None:
    assert reasons_against_layers(Windowless, [SPEC, SPEC]) == []
    assert reasons_against_layers(Windowless, LAYERS) == ["it has no windows"]


def test_auto_chooses_one_backend_for_all_layers(packages: Packages) -> None:
    packages.write_settings(f"{WITHOUT_OWN}[attention_backend]\nuse = 'auto'\n")
    auto = choose_attention_backend(PluginHost.load(EngineConfig(), extra=[Offers()]))
    assert reasons_against_layers(auto, LAYERS) == []
    assert make_attention(auto, LAYERS).name == "torch"
    assert make_attention(auto, [SPEC] * 2).name == "windowless"
