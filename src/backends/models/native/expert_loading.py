"""Reads the feed-forward part of a layer with experts: the router, and a network per expert.

Shape suffixes: x experts, i outputs of gate and up, e hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...linear.base import LinearBackend, Projection
from ...linear.torch import Linear
from ...weights.config.model_config import ExpertsConfig, ModelConfig
from ...weights.packed import Weights
from .feed_forward import ClampedGate, Experts, GatedNetwork
from .weight_source import WeightSource


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


def load_experts(
    source: WeightSource, config: ModelConfig, prefix: str, makes: LinearBackend
) -> Experts:
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
    source: WeightSource, stem: str, name: str, experts: ExpertsConfig, shape: tuple[int, int]
) -> Sequence[Weights]:
    """Read one matrix of each expert."""
    outputs, inputs = shape
    if not source.has(f"{stem}.{name}.weight"):
        return [
            source.take_matrix(f"{stem}.{index}.{name}.weight", shape) for index in experts.local
        ]
    rows = len(experts.local) * outputs
    stacked = source.take_matrix(f"{stem}.{name}.weight", (rows, inputs))
    return [stacked.narrow(0, start, outputs) for start in range(0, rows, outputs)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clamped:
    """The weights of all experts of a layer of gpt-oss, one entry per expert."""

    gate_ups: Sequence[Sequence[Weights]]
    """Segments of one product."""
    gate_up_biases_xi: torch.Tensor
    is_interleaved: bool
    downs: Sequence[Weights]
    down_biases_xe: torch.Tensor


def _load_clamped(
    source: WeightSource,
    config: ModelConfig,
    experts: ExpertsConfig,
    mlp: str,
    makes: LinearBackend,
) -> Experts:
    """Read the router and the experts of gpt-oss, which have biases."""
    number, hidden = experts.num_experts, config.hidden_size
    is_interleaved = source.has(f"{mlp}.experts.gate_up_proj")
    take = _take_interleaved if is_interleaved else _take_apart
    own = take(source, f"{mlp}.experts", experts, hidden)
    router = Linear(
        source.take(f"{mlp}.router.weight", (number, hidden)),
        source.take(f"{mlp}.router.bias", (number,)),
    )
    networks = [
        GatedNetwork(
            _clamped_gate(makes.linear(gate_up, gate_up_bias), own.is_interleaved, experts),
            makes.linear([down], down_bias),
        )
        for gate_up, gate_up_bias, down, down_bias in zip(
            own.gate_ups, own.gate_up_biases_xi, own.downs, own.down_biases_xe, strict=True
        )
    ]
    return Experts(config=experts, router=router, networks=networks)


def _clamped_gate(both: Projection, is_interleaved: bool, experts: ExpertsConfig) -> ClampedGate:
    assert experts.swiglu_limit is not None
    return ClampedGate(
        both=both,
        is_interleaved=is_interleaved,
        limit=experts.swiglu_limit,
        alpha=experts.swiglu_alpha,
    )


def _take_interleaved(
    source: WeightSource, stem: str, experts: ExpertsConfig, hidden: int
) -> _Clamped:
    """Read the tensors of transformers' checkpoints: rows of gate and up alternate."""
    number, inner = len(experts.local), experts.intermediate_size
    both = _take_whole(source, f"{stem}.gate_up_proj", experts, (2 * inner, hidden))
    return _Clamped(
        gate_ups=[[own] for own in both],
        gate_up_biases_xi=source.take(f"{stem}.gate_up_proj_bias", (number, 2 * inner)),
        is_interleaved=True,
        downs=_take_whole(source, f"{stem}.down_proj", experts, (hidden, inner)),
        down_biases_xe=source.take(f"{stem}.down_proj_bias", (number, hidden)),
    )


def _take_apart(source: WeightSource, stem: str, experts: ExpertsConfig, hidden: int) -> _Clamped:
    """Read the tensors of GGUF files: gate and up apart."""
    number, inner = len(experts.local), experts.intermediate_size
    names = ("gate_proj", "up_proj")
    gates, ups = (_take(source, stem, name, experts, (inner, hidden)) for name in names)
    biases = [source.take(f"{stem}.{name}.bias", (number, inner)) for name in names]
    return _Clamped(
        gate_ups=list(zip(gates, ups, strict=True)),
        gate_up_biases_xi=torch.cat(biases, dim=1),
        is_interleaved=False,
        downs=_take(source, stem, "down_proj", experts, (hidden, inner)),
        down_biases_xe=source.take(f"{stem}.down_proj.bias", (number, hidden)),
    )


def _take_whole(
    source: WeightSource, name: str, experts: ExpertsConfig, shape: tuple[int, int]
) -> Sequence[Weights]:
    """Read one matrix [out, in] of each expert from a tensor with all of them.

    Tensors in floating point are [experts, in, out]; packed ones are rows of outputs.
    """
    outputs, inputs = shape
    if not source.is_packed(name):
        stacked = source.take(name, (len(experts.local), inputs, outputs))
        return [own.t().contiguous() for own in stacked]
    rows = source.take_matrix(name, (len(experts.local) * outputs, inputs))
    return [rows.narrow(0, start, outputs) for start in range(0, rows.shape[0], outputs)]
