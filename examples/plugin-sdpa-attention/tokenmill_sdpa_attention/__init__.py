"""Attention by torch's scaled_dot_product_attention, sequence by sequence, on CPUs and GPUs."""

from typing import Any

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


def _sdpa() -> Any:
    """One call of scaled_dot_product_attention for each sequence. It is short, not fast."""
    from .backend import SdpaAttention  # imports torch, so not before it is needed

    return SdpaAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ATTENTION_BACKEND, "sdpa", _sdpa)
