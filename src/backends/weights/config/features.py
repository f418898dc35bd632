"""The features of an architecture, in one record: loader, decoder, native description, sharding and
memory need read it.

A feature is off by default. To add one: a field here, its value in the rows of architectures.py,
its computation in models/native/decoder.py and in the native library, and a configuration in
tests/backends/cpu/test_decoder_call.py. Tests there fail without the last two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Norms(StrEnum):
    """The norms of a layer over the hidden size; see NORMS in models/native/loader.py."""

    BEFORE = "before"
    """Before attention, and before the feed-forward."""
    AROUND = "around"
    """The outputs of attention and of the feed-forward have norms of their own, too (Gemma)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The differences of an architecture's computation from Llama's. Files do not state them."""

    norms: Norms = Norms.BEFORE
    norm_offset: float = 0.0
    """Is added to the weights of all norms (Gemma). GGUF files hold the sum."""
    float32_norms: bool = False
    """The weights of norms are applied in float32, and the product is rounded (Gemma, gpt-oss)."""
    qk_norm: bool = False
    """RMSNorm over each head of q and k, before the rotation (Qwen3, Gemma 3)."""
    whole_qk_norm: bool = False
    """RMSNorm over all heads of q together, and of k, before the rotation (OLMoE)."""
    scales_embedding: bool = False
    """Embeddings are multiplied by the square root of the hidden size, rounded to the model's
    precision (Gemma)."""
    attention_sinks: bool = False
    """Each head has a number that takes part in the softmax like the score of a key whose value
    is 0 (gpt-oss)."""
