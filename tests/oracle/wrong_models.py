"""Plants errors in tiny models, and measures how far their first steps are from the right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.backends.chosen import backends_of
from tokenmill.backends.models.opening import choose_model_impl, open_model
from tokenmill.backends.running.checking.model_check import compare_first_steps, first_tokens
from tokenmill.backends.running.parts.model_parts import ModelParts, choose_spec, load_parts
from tokenmill.backends.weights.config.kv_groups import group_layers
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress

EFFECT = 0.05
"""A planted error counts if it changes the model's own logits that much, relative to their size."""
_SCALE = 2**0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """An error in tensors of a model."""

    is_in: Callable[[str, torch.Tensor], bool]
    change: Callable[[torch.Tensor], torch.Tensor]
    is_last: bool = False
    """Whether only the last such tensor changes."""


def _is_norm(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and ("norm" in name.lower() or "ln" in name) and "bias" not in name


def _is_bias(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and name.endswith("bias")


def _is_experts(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() == 3 and "expert" in name


def _add_noise(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + 0.2 * torch.ones_like(tensor).cumsum(0).sin()


PLANTS: Mapping[str, Plant] = {
    "norm offset": Plant(is_in=_is_norm, change=lambda t: t + 1),
    "offset of one norm": Plant(is_in=_is_norm, change=lambda t: t + 1, is_last=True),
    "rope theta": Plant(is_in=lambda name, _: "inv_freq" in name, change=lambda t: t**1.4),
    "swapped experts": Plant(is_in=_is_experts, change=lambda t: t.roll(1, 0)),
    "swapped experts in one layer": Plant(
        is_in=_is_experts, change=lambda t: t.roll(1, 0), is_last=True
    ),
    "biases": Plant(is_in=_is_bias, change=_add_noise),
    "one bias": Plant(is_in=_is_bias, change=_add_noise, is_last=True),
    "embedding scale": Plant(is_in=lambda name, _: "embed" in name, change=lambda t: t * 1.5),
    "one lost matrix": Plant(
        is_in=lambda name, t: t.dim() == 2 and any(one in name for one in ("down", "fc2", "mlp")),
        change=torch.zeros_like,
        is_last=True,
    ),
}


def load(folder: Path, dtype: str) -> ModelParts:
    """Load a model through transformers."""
    config = EngineConfig(device="cpu", dtype=dtype, model_impl="transformers")
    host = PluginHost.load(config)
    checkpoint, impl = open_model(folder, choose_model_impl(host), config)
    backends = backends_of(host)
    spec = choose_spec(checkpoint, config, backends, no_progress)
    groups = group_layers(checkpoint.config, None)
    return load_parts(checkpoint, config, backends, spec, no_progress, impl, groups)


@torch.inference_mode()
def measure(parts: ModelParts) -> tuple[float, dict[str, float]]:
    """The error of the right model's first steps, and that of each wrong one that has an effect."""
    reference = parts.decoder.reference  # type: ignore[attr-defined]
    tokens_bn = first_tokens(parts)
    right = reference(tokens_bn)
    found = {}
    for name, plant in PLANTS.items():
        with _planted(parts.decoder.model, plant):  # type: ignore[attr-defined]
            if _distance(reference(tokens_bn).logits_tv, right.logits_tv) > EFFECT:
                found[name] = _error(parts, right)
    found["attention scale"] = _error(
        replace(parts, attention=_Scaled(parts.attention)),
        right,  # type: ignore[arg-type]
    )
    return _error(parts, right), found


def _error(parts: ModelParts, right: Any) -> float:
    error = compare_first_steps(parts, lambda _: right, lambda: False)
    assert error is not None
    return error


def _distance(own_tv: torch.Tensor, expected_tv: torch.Tensor) -> float:
    return float((own_tv - expected_tv).norm() / expected_tv.norm())


@contextmanager
def _planted(model: Any, plant: Plant) -> Iterator[None]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    chosen = [tensor for name, tensor in tensors if plant.is_in(name, tensor)]
    chosen = chosen[-1:] if plant.is_last else chosen
    before = [tensor.clone() for tensor in chosen]
    for tensor in chosen:
        tensor.copy_(plant.change(tensor))
    try:
        yield
    finally:
        for tensor, old in zip(chosen, before, strict=True):
            tensor.copy_(old)


class _Scaled:
    """An attention backend whose scale is wrong."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, layer: int, q_thd: torch.Tensor, *others: Any) -> None:
        self._inner.forward(layer, q_thd * _SCALE, *others)
