"""Reads the feed-forward part of a layer: one gated network, or a router and its experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..linear.base import LinearBackend
from ..linear.torch import Linear
from ..weights.model_config import ExpertsConfig, ModelConfig
from ..weights.packed import Weights
from .feed_forward import ClampedGate, Experts, GatedNetwork


class Source(Protocol):
    """Takes tensors from a checkpoint; see `loader`."""

    def has(self, name: str) -> bool: ...
    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor: ...
    def take_matrix(self, name: str, shape: tuple[int, int]) -> Weights: ...
    def is_packed(self, name: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of one family of checkpoints, below a layer's name."""

    router: str
    experts: str
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


_NAMES = _Names("mlp.gate", "mlp.experts")
_MIXTRAL_NAMES = _Names(
    "block_sparse_moe.gate", "block_sparse_moe.experts", gate="w1", up="w3", down="w2"
)


def load_experts(source: Source, config: ModelConfig, prefix: str, makes: LinearBackend) -> Experts:
    """Read a layer's router and experts. Raises ConfigError for a missing or wrong tensor.

    Checkpoints have a matrix per expert, or (GGUF) one matrix with all experts, one below the
    other.
    """
    experts = config.experts
    assert experts is not None
    if experts.swiglu_limit is not None:
        return _load_clamped(source, config, experts, f"{prefix}.mlp", makes)
    has_mixtral_s = source.has(f"{prefix}.{_MIXTRAL_NAMES.router}.weight")
    names = _MIXTRAL_NAMES if has_mixtral_s else _NAMES
    hidden, inner = config.hidden_size, experts.intermediate_size
    router = source.take(f"{prefix}.{names.router}.weight", (experts.num_experts, hidden))
    stem = f"{prefix}.{names.experts}"
    gates = _take(source, stem, names.gate, experts, (inner, hidden))
    ups = _take(source, stem, names.up, experts, (inner, hidden))
    downs = _take(source, stem, names.down, experts, (hidden, inner))
    return Experts(
        config=experts,
        router=Linear(router),  # by torch, because its rounding decides which experts compute
        networks=[
            GatedNetwork(
                makes.gate_up(gate, up, None, config.hidden_act), makes.linear([down], None)
            )
            for gate, up, down in zip(gates, ups, downs, strict=True)
        ],
    )


def _take(
    source: Source, stem: str, name: str, experts: ExpertsConfig, shape: tuple[int, int]
) -> Sequence[Weights]:
    """Read one matrix of each expert."""
    outputs, inputs = shape
    if not source.has(f"{stem}.{name}.weight"):
        return [
            source.take_matrix(f"{stem}.{index}.{name}.weight", shape)
            for index in range(experts.num_experts)
        ]
    rows = experts.num_experts * outputs
    stacked = source.take_matrix(f"{stem}.{name}.weight", (rows, inputs))
    return [stacked.narrow(0, start, outputs) for start in range(0, rows, outputs)]


def _load_clamped(
    source: Source, config: ModelConfig, experts: ExpertsConfig, mlp: str, makes: LinearBackend
) -> Experts:
    """Read the router and the experts of gpt-oss, which have biases."""
    number, hidden, inner = experts.num_experts, config.hidden_size, experts.intermediate_size
    router = Linear(
        source.take(f"{mlp}.router.weight", (number, hidden)),
        source.take(f"{mlp}.router.bias", (number,)),
    )
    stem = f"{mlp}.experts"
    is_interleaved = source.has(f"{stem}.gate_up_proj")
    if is_interleaved:
        ups = [
            [both]
            for both in _take_whole(source, f"{stem}.gate_up_proj", experts, (2 * inner, hidden))
        ]
        up_biases_xi = source.take(f"{stem}.gate_up_proj_bias", (number, 2 * inner))
        downs = _take_whole(source, f"{stem}.down_proj", experts, (hidden, inner))
        down_biases_xe = source.take(f"{stem}.down_proj_bias", (number, hidden))
    else:
        parts = [
            _take(source, stem, f"{name}_proj", experts, (inner, hidden)) for name in ("gate", "up")
        ]
        ups = [list(pair) for pair in zip(*parts, strict=True)]
        biases = [
            source.take(f"{stem}.{name}_proj.bias", (number, inner)) for name in ("gate", "up")
        ]
        up_biases_xi = torch.cat(biases, dim=1)
        downs = _take(source, stem, "down_proj", experts, (hidden, inner))
        down_biases_xe = source.take(f"{stem}.down_proj.bias", (number, hidden))
    assert experts.swiglu_limit is not None
    return Experts(
        config=experts,
        router=router,
        networks=[
            GatedNetwork(
                ClampedGate(
                    both=makes.linear(up, up_bias),
                    is_interleaved=is_interleaved,
                    limit=experts.swiglu_limit,
                    alpha=experts.swiglu_alpha,
                ),
                makes.linear([down], down_bias),
            )
            for up, up_bias, down, down_bias in zip(
                ups, up_biases_xi, downs, down_biases_xe, strict=True
            )
        ],
    )


def _take_whole(
    source: Source, name: str, experts: ExpertsConfig, shape: tuple[int, int]
) -> Sequence[Weights]:
    """Read one matrix [out, in] of each expert from a tensor with all of them.

    Tensors in floating point are [experts, in, out]; packed ones are rows of outputs.
    """
    outputs, inputs = shape
    if not source.is_packed(name):
        stacked = source.take(name, (experts.num_experts, inputs, outputs))
        return [own.t().contiguous() for own in stacked]
    rows = source.take_matrix(name, (experts.num_experts * outputs, inputs))
    return [rows.narrow(0, start, outputs) for start in range(0, rows.shape[0], outputs)]
