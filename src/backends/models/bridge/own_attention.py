"""Lets transformers compute the attention of a model, and records it.

Shape suffixes: b sequences, n tokens of a sequence, t tokens of all sequences, h query heads, k KV
heads, d head size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..base import AttentionRecord
from .attention import IMPLEMENTATION

_FUNCTIONS: Any = ALL_ATTENTION_FUNCTIONS


@contextmanager
def own_attention(model: Any) -> Iterator[list[AttentionRecord]]:
    """Let transformers compute the attention, as it does by default; yields a list of all calls."""
    records: list[AttentionRecord] = []
    name = "sdpa" if model._supports_sdpa else "eager"
    model.set_attn_implementation(name)
    _FUNCTIONS[name] = _recording(_FUNCTIONS.get(name), records)  # in this mapping alone
    try:
        yield records
    finally:
        del _FUNCTIONS[name]
        model.set_attn_implementation(IMPLEMENTATION)


def _recording(function: Any, records: list[AttentionRecord]) -> Callable[..., Any]:
    """`function` or, if it is None, that of a module's own file; it adds each call to `records`."""

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        **named: Any,
    ) -> Any:
        own: Any = function or vars(sys.modules[type(module).__module__])["eager_attention_forward"]
        out_bnhd, weights = own(module, query, key, value, *args, **named)
        record = AttentionRecord(
            layer=module.layer_idx,
            q_thd=_flat(query),
            k_tkd=_flat(key),
            v_tkd=_flat(value),
            out_thd=out_bnhd.flatten(0, 1),
        )
        records.append(record)
        return out_bnhd, weights

    return attend


def _flat(tensor_bhnd: torch.Tensor) -> torch.Tensor:
    """[b, h, n, d] -> [t, h, d]"""
    return tensor_bhnd.transpose(1, 2).flatten(0, 1).contiguous()
