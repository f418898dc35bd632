"""Wrong implementations of models: each makes one mistake that the native one does not make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from tokenmill.backends.models.base import LoadOptions, Model, ModelSpec
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.config.features import Features
from tokenmill.testing.conformance.computing import model as suite

from . import fails

CONFIG = transformers.LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


class Changed:
    """A model with another `forward` or `compute_logits`."""

    def __init__(self, inner: Model, forward: Any = None, compute_logits: Any = None) -> None:
        self._inner = inner
        self._forward, self._compute_logits = forward, compute_logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, *arguments: Any) -> Any:
        if self._forward is None:
            return self._inner.forward(*arguments)
        return self._forward(self._inner, *arguments)

    def compute_logits(self, hidden_re: torch.Tensor) -> Any:
        logits = self._inner.compute_logits(hidden_re)
        return logits if self._compute_logits is None else self._compute_logits(logits)


def wrong(forward: Any = None, compute_logits: Any = None) -> Any:
    class Impl(NativeModels):
        @classmethod
        def write_sample(cls, folder: Path) -> None:
            torch.manual_seed(3)
            model = transformers.LlamaForCausalLM(CONFIG)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(0.0, 0.3)
            model.save_pretrained(folder)

        def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Any:
            return Changed(super().load(checkpoint, options), forward, compute_logits)

    return Impl


@fails(suite.check_other_architectures_are_refused)
class AcceptsEverything(wrong()):  # type: ignore[misc]
    @classmethod
    def reasons_against(cls, spec: ModelSpec) -> list[str]:
        return []


@fails(suite.check_every_layer_attends_once_and_sizes_are_as_configured)
def attends_twice() -> Any:
    def forward(inner: Model, tokens: Any, positions: Any, attend: Callable[..., Any]) -> Any:
        def twice(layer: int, *qkv: torch.Tensor) -> Any:
            answer = attend(layer, *qkv)
            getattr(attend, "layers", []).append(layer)
            return answer

        return inner.forward(tokens, positions, twice)

    return wrong(forward)


@fails(suite.check_every_layer_attends_once_and_sizes_are_as_configured)
def returns_half_precision_logits() -> Any:
    return wrong(compute_logits=lambda logits: logits.bfloat16())


@fails(suite.check_every_layer_attends_once_and_sizes_are_as_configured)
class HasSinksForOneLayerOnly(wrong()):  # type: ignore[misc]
    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Any:
        model = super().load(checkpoint, options)
        model.config = replace(model.config, features=Features(attention_sinks=True))
        model.sinks = [torch.zeros(4)]
        return model


@fails(suite.check_chunks_of_a_prompt_equal_the_whole)
def numbers_positions_itself() -> Any:
    def forward(inner: Model, tokens: Any, positions: Any, attend: Any) -> Any:
        starts = (positions[1:] != positions[:-1] + 1).nonzero().flatten() + 1
        parts = positions.tensor_split(starts)
        return inner.forward(tokens, torch.cat([part - part[0] for part in parts]), attend)

    return wrong(forward)


@fails(suite.check_sequences_of_a_batch_do_not_change_each_other)
def mixes_sequences() -> Any:
    def forward(inner: Model, tokens: Any, positions: Any, attend: Any) -> Any:
        hidden = inner.forward(tokens, positions, attend)
        return hidden * (positions == 0).sum().clamp(min=1)

    return wrong(forward)
