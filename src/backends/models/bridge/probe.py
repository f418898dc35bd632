"""Determines the attention that a transformers model needs, by running it without weights."""

from __future__ import annotations

from typing import Any

import torch

from ....core.errors import ConfigError
from ...weights.config.fields import largest, one_line
from ...weights.config.model_config import LayerKind, ModelConfig
from .attention import AttentionCall, recorded_local_sizes
from .model import Layers

_NUM_TOKENS = 2
_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
_NEEDS_VALUES = ("meta tensor", "register_meta")
"""In errors of torch about tensors without numbers."""


def probe(model: Any, source: str) -> ModelConfig:
    """Return the sizes of a model whose parameters are on the meta device.

    `check_sizes` has passed. Raises ConfigError if a layer does not attend in the way that the
    engine computes.
    """
    text = text_config_of(model.config, source)
    _refuse_layers_with_states(model, text, source)
    with recorded_local_sizes() as local_sizes:
        calls = _record(model, source)
    num_layers = _stated(text, "num_hidden_layers", source)
    if sorted(call.layer for call in calls) != list(range(num_layers)):
        raise ConfigError(
            f"{source}: {type(model).__name__} of transformers has {num_layers} layers, but "
            f"{len(calls)} of them attend through its attention interface, so it is not supported"
        )
    hidden_size, vocab_size, max_position_embeddings = (
        _stated(text, name, source) for name in _SIZES[1:]
    )
    calls.sort(key=lambda call: call.layer)
    first = calls[0]
    for call in calls:
        _check_like(first, call, source)
    # Layers that attend within chunks (Llama 4), or whose only sign of a window is their mask.
    unknown = local_sizes - {call.sliding_window for call in calls}
    is_used = _kinds_of_layers(text) != {"full_attention"}
    if is_used and any(0 < size < max_position_embeddings for size in unknown):
        raise ConfigError(
            f"{source}: {type(model).__name__} of transformers attends within {min(unknown)} "
            "tokens by a mask of its own, which is not supported"
        )
    num_heads, head_size = first.q_thd.shape[1:]
    scale = first.scale
    return ModelConfig(
        architecture=type(model).__name__,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=first.k_tkd.shape[1],
        head_size=head_size,
        intermediate_size=_largest_inner_size(text),
        vocab_size=vocab_size,
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=1e-6,  # the modules have their own
        query_pre_attn_scalar=None if scale is None else scale**-2,
        attention_soft_cap=first.soft_cap,
        layers=tuple(LayerKind(sliding_window=call.sliding_window, rope=None) for call in calls),
    )


def _refuse_layers_with_states(model: Any, text: Any, source: str) -> None:
    """Raise ConfigError for layers that do not attend, such as "conv" and "linear_attention"."""
    kinds = _kinds_of_layers(text)
    others = sorted(kind for kind in kinds if not kind.endswith("attention") or "linear" in kind)
    if others:
        raise ConfigError(
            f"{source}: {type(model).__name__} of transformers has layers of type {others[0]}, "
            "which keep states outside of attention, so it is not supported"
        )


def _kinds_of_layers(text: Any) -> set[str]:
    return set(getattr(text, "layer_types", None) or ())


def _record(model: Any, source: str) -> list[AttentionCall]:
    calls: list[AttentionCall] = []

    def answer(call: AttentionCall) -> torch.Tensor:
        calls.append(call)
        return call.q_thd.new_empty((*call.q_thd.shape[:2], call.v_tkd.shape[2]))

    tokens_t = torch.zeros(_NUM_TOKENS, dtype=torch.long, device="meta")
    try:
        layers = Layers(model)
        with torch.inference_mode():
            layers.compute_logits(layers.forward(tokens_t, tokens_t, answer))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except Exception as error:  # any model of transformers, with any configuration
        name = f"{source}: {type(model).__name__} of transformers"
        if any(sign in str(error) for sign in _NEEDS_VALUES):
            raise ConfigError(
                f"{name} is not supported: its computation depends on values, so it cannot be "
                "checked before its weights are loaded"
            ) from error
        raise ConfigError(
            f"{name} cannot run on a flat batch without masks: {one_line(error)}"
        ) from error
    return calls


def _check_like(first: AttentionCall, call: AttentionCall, source: str) -> None:
    """Raise ConfigError for heads of different sizes, in a layer or between layers."""
    shapes = {(one.q_thd.shape, one.k_tkd.shape, one.scale, one.soft_cap) for one in (first, call)}
    if len(shapes) > 1 or call.v_tkd.shape != call.k_tkd.shape:
        raise ConfigError(
            f"{source}: queries, keys or values of layer {call.layer} differ in size from each "
            "other or from layer 0, which is not supported"
        )
    if call.q_thd.shape[2] != call.k_tkd.shape[2]:
        raise ConfigError(f"{source}: queries and keys of layer {call.layer} differ in size")


def _largest_inner_size(text: Any) -> int:
    """The size inside of feed-forward networks, which may differ between layers (Gemma 3n)."""
    stated = getattr(text, "intermediate_size", None) or 1
    return max(stated) if isinstance(stated, list | tuple) else stated


def check_sizes(config: Any, source: str) -> None:
    """Raise ConfigError for an impossible size, before a model is built."""
    text = text_config_of(config, source)
    for name in _SIZES:
        if getattr(text, name, None) is None:
            continue  # refused later, if nothing else is wrong
        value = _stated(text, name, source)
        if not 1 <= value <= largest(name):
            raise ConfigError(
                f"{name} in {source} must be between 1 and {largest(name)}, got {value!r:.80}"
            )


def _stated(text: Any, name: str, source: str) -> int:
    """A size. Raises ConfigError if it is missing."""
    value = getattr(text, name, None)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{source} lacks {name}")
    return value


def text_config_of(config: Any, source: str) -> Any:
    """The part of a configuration that describes the decoder of text. Raises ConfigError."""
    try:
        return config.get_text_config(decoder=True)
    except ValueError as error:
        raise ConfigError(f"{source}: {one_line(error)}") from error
