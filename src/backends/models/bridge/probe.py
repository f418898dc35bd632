"""Determines the attention that a transformers model needs, by running it without weights."""

from __future__ import annotations

from typing import Any

import torch

from ....core.errors import ConfigError
from ...weights.config.fields import one_line
from ...weights.config.model_config import LayerKind, ModelConfig
from .attention import AttentionCall, answered_by

_NUM_TOKENS = 2


def probe(model: Any, source: str) -> ModelConfig:
    """Return the sizes of a model whose parameters are on the meta device.

    Raises ConfigError if a layer does not attend in the way that the engine computes.
    """
    calls = _record(model, source)
    text = model.config.get_text_config()
    num_layers = _integer(text, "num_hidden_layers", source)
    if sorted(call.layer for call in calls) != list(range(num_layers)):
        raise ConfigError(
            f"{source}: {type(model).__name__} of transformers has {num_layers} layers, but "
            f"{len(calls)} of them attend through its attention interface, so it is not supported"
        )
    calls.sort(key=lambda call: call.layer)
    first = calls[0]
    for call in calls:
        _check_like(first, call, source)
    num_heads, head_size = first.q_thd.shape[1:]
    scale = first.scale
    return ModelConfig(
        architecture=type(model).__name__,
        num_layers=num_layers,
        hidden_size=_integer(text, "hidden_size", source),
        num_heads=num_heads,
        num_kv_heads=first.k_tkd.shape[1],
        head_size=head_size,
        intermediate_size=getattr(text, "intermediate_size", None) or 1,
        vocab_size=_integer(text, "vocab_size", source),
        max_position_embeddings=_integer(text, "max_position_embeddings", source),
        rms_norm_eps=1e-6,  # the modules have their own
        query_pre_attn_scalar=None if scale is None else scale**-2,
        attention_soft_cap=first.soft_cap,
        layers=tuple(LayerKind(sliding_window=call.sliding_window, rope=None) for call in calls),
    )


def _record(model: Any, source: str) -> list[AttentionCall]:
    calls: list[AttentionCall] = []

    def answer(call: AttentionCall) -> torch.Tensor:
        calls.append(call)
        return torch.empty_like(call.q_thd)

    tokens = torch.zeros(1, _NUM_TOKENS, dtype=torch.long, device="meta")
    try:
        with answered_by(answer), torch.inference_mode():
            model(
                input_ids=tokens,
                position_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                use_cache=False,
            )
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    except Exception as error:  # any model of transformers, with any configuration
        raise ConfigError(
            f"{source}: {type(model).__name__} of transformers cannot run on a flat batch: "
            f"{one_line(error)}"
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


def _integer(config: Any, name: str, source: str) -> int:
    value = getattr(config, name, None)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{source} lacks {name}")
    return value
