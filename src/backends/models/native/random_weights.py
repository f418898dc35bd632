"""Seeded random weights for any configuration: `--load-format dummy`, and models of tests.

The scales keep hidden states near 1, concentrate attention on few tokens, and spread the logits. So
a wrong mask or position changes the output, and near-ties are rare.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ....core.errors import ConfigError
from ...weights.config.features import Norms
from ...weights.config.model_config import ExpertsConfig, ModelConfig
from ...weights.packed import StoredTensor
from .loader import NORMS


@dataclass(frozen=True, slots=True)
class _Normal:
    """A tensor of normally distributed numbers."""

    shape: tuple[int, ...]
    std: float
    mean: float = 0.0


class RandomTensors:
    """Makes each tensor when it is read; see TensorFiles for the methods."""

    def __init__(
        self, seed: int, name: str, config: ModelConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        """`name` is that of the model, for errors."""
        self._name, self._seed, self._dtype = name, seed, dtype
        self._layout = _layout(config)

    def header_bytes(self) -> Mapping[Path, int]:
        """See TensorFiles: there are no files."""
        return {}

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._layout)

    def stored(self, name: str) -> StoredTensor:
        shape = self._layout[name].shape
        return StoredTensor(shape, self._dtype, self._dtype.itemsize * math.prod(shape))

    def tensor(self, name: str) -> torch.Tensor:
        """Make one tensor; it depends only on seed, name, shape and scale."""
        if name not in self._layout:
            raise ConfigError(f"{self._name} lacks the tensor {name}")
        normal = self._layout[name]
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        noise = torch.randn(normal.shape, generator=generator)
        return noise.mul_(normal.std).add_(normal.mean).to(self._dtype)

    def matrix(self, name: str) -> torch.Tensor:
        """See TensorFiles: the weights are not packed."""
        return self.tensor(name)

    def release(self) -> None:
        """See TensorFiles: no file is mapped."""


def _layout(config: ModelConfig) -> dict[str, _Normal]:
    """Return shape and distribution of every tensor of the model."""
    embedding = _Normal((config.vocab_size, config.hidden_size), 2 / math.sqrt(config.hidden_size))
    layout = {"model.embed_tokens.weight": embedding}
    for index in range(config.num_layers):
        layer = _layer_layout(config)
        layout |= {f"model.layers.{index}.{name}": normal for name, normal in layer.items()}
    layout["model.norm.weight"] = _norm(config.hidden_size)
    if not config.tie_word_embeddings:
        layout["lm_head.weight"] = embedding
    return layout


def _layer_layout(config: ModelConfig) -> dict[str, _Normal]:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_size
    q_size, kv_size = config.num_heads * head, config.num_kv_heads * head
    qkv_bias, out_bias = config.attention_bias, config.attention_output_bias
    layout = {
        **_norms_layout(config.features.norms, hidden),
        **_linear("self_attn.q_proj", q_size, hidden, qkv_bias, gain=2.0),
        **_linear("self_attn.k_proj", kv_size, hidden, qkv_bias, gain=2.0),
        **_linear("self_attn.v_proj", kv_size, hidden, qkv_bias),
        **_linear("self_attn.o_proj", hidden, q_size, out_bias),
    }
    if config.experts is not None:
        layout |= _experts_layout(config.experts, hidden)
    else:
        layout |= _network_layout("mlp", inner, hidden, config.mlp_bias)
    if config.features.qk_norm:
        layout |= {f"self_attn.{n}_norm.weight": _norm(head, mean=2.0) for n in ("q", "k")}
    if config.features.whole_qk_norm:
        sizes = {"q": q_size, "k": kv_size}
        layout |= {f"self_attn.{n}_norm.weight": _norm(size) for n, size in sizes.items()}
    if config.features.attention_sinks:
        layout["self_attn.sinks"] = _Normal((config.num_heads,), 1.0, 1.0)
    return layout


def _norms_layout(norms: Norms, hidden: int) -> dict[str, _Normal]:
    """Norms of outputs are smaller."""
    means = {"attention_output_norm": 0.5, "feed_forward_output_norm": 0.5}
    named = NORMS[norms].items()
    return {f"{name}.weight": _norm(hidden, means.get(field, 1.0)) for field, name in named}


def _network_layout(name: str, inner: int, hidden: int, has_bias: bool) -> dict[str, _Normal]:
    return {
        **_linear(f"{name}.gate_proj", inner, hidden, has_bias),
        **_linear(f"{name}.up_proj", inner, hidden, has_bias),
        **_linear(f"{name}.down_proj", hidden, inner, has_bias),
    }


def _experts_layout(experts: ExpertsConfig, hidden: int) -> dict[str, _Normal]:
    """Names and shapes of Qwen3-MoE, or of gpt-oss if gates are clamped."""
    number, inner = experts.num_experts, experts.intermediate_size
    if experts.swiglu_limit is None:
        networks = (
            _network_layout(f"mlp.experts.{index}", inner, hidden, False) for index in range(number)
        )
        router = _linear("mlp.gate", number, hidden, False, gain=2.0)
        return {name: one for own in (router, *networks) for name, one in own.items()}
    return {
        **_linear("mlp.router", number, hidden, True, gain=2.0),
        "mlp.experts.gate_up_proj": _Normal((number, hidden, 2 * inner), hidden**-0.5),
        "mlp.experts.gate_up_proj_bias": _Normal((number, 2 * inner), 0.1),
        "mlp.experts.down_proj": _Normal((number, inner, hidden), inner**-0.5),
        "mlp.experts.down_proj_bias": _Normal((number, hidden), 0.1),
    }


def _norm(size: int, mean: float = 1.0) -> _Normal:
    return _Normal((size,), 0.1, mean)


def _linear(
    name: str, outputs: int, inputs: int, has_bias: bool, gain: float = 1.0
) -> dict[str, _Normal]:
    layout = {f"{name}.weight": _Normal((outputs, inputs), gain / math.sqrt(inputs))}
    if has_bias:
        layout[f"{name}.bias"] = _Normal((outputs,), 0.1)
    return layout
