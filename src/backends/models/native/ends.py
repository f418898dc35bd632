"""Reads the two ends of a decoder: the embedding, and the head. If they are tied, they share their
memory.

Shape suffixes: v vocabulary, e hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from ...linear.base import Embedding, LinearBackend, Projection
from ...linear.torch import EmbeddingTable, Head
from ...weights.config.model_config import ModelConfig
from ...weights.packed import PackedWeights, Weights
from .weight_source import WeightSource

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class NoHead:
    """The head of a stage that has none: a later stage computes the logits."""

    num_parameters = num_bytes = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("only the last stage of a model has a head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The two ends of a decoder. A stage of a model may lack one or both."""

    embedding: Embedding
    head: Projection
    is_tied: bool = False
    """Whether the head has the numbers of the embedding, or was quantized from them."""
    is_shared: bool = False
    """Whether they have the same memory."""


def load_ends(source: WeightSource, config: ModelConfig, makes: LinearBackend) -> Ends:
    """Read the embedding, and the head or the part of it that this process computes.

    With tied embeddings a file may still have a head. If it differs, it is used, as transformers
    does.
    """
    first, num_logits = config.logits_part or (0, config.num_logits)
    head_shape = num_logits, config.hidden_size
    if not config.has_embedding:
        head = makes.head(source.take_matrix(_HEAD, head_shape)) if config.has_head else NoHead()
        return Ends(embedding=EmbeddingTable(source.empty(0, config.hidden_size)), head=head)
    rows_ve = source.take_rows(_EMBEDDING, (config.vocab_size, config.hidden_size))
    if not config.has_head:
        return Ends(embedding=_embedding(source, makes, rows_ve), head=NoHead())
    has_part = num_logits < config.vocab_size
    tied = rows_ve.narrow(0, first, num_logits) if has_part else rows_ve
    is_stored = source.has(_HEAD) or not config.tie_word_embeddings
    own = source.take_matrix(_HEAD, head_shape) if is_stored else tied
    if not is_stored or (config.tie_word_embeddings and _are_equal(own, tied)):
        return _tied_ends(source, makes, rows_ve, tied)
    return Ends(
        embedding=_embedding(source, makes, rows_ve),
        head=makes.head(own),
        is_tied=config.tie_word_embeddings and isinstance(own, PackedWeights),
    )


def _tied_ends(
    source: WeightSource, makes: LinearBackend, rows_ve: Weights, head_rows: Weights
) -> Ends:
    """The ends of a model whose head is the embedding, or (`head_rows`) a part of it."""
    head = makes.head(head_rows)
    if head_rows is rows_ve and makes.capabilities.looks_up:
        embedding = cast(Any, makes).embedding(head)
        return Ends(embedding=embedding, head=head, is_tied=True, is_shared=True)
    return Ends(
        embedding=_embedding(source, makes, rows_ve),
        head=head,
        is_tied=True,
        is_shared=isinstance(head, Head),
    )


def _embedding(source: WeightSource, makes: LinearBackend, rows_ve: Weights) -> Embedding:
    """An embedding in memory of its own. Packed rows stay packed if the backend looks them up."""
    if isinstance(rows_ve, torch.Tensor):
        return EmbeddingTable(rows_ve)
    if makes.capabilities.looks_up:
        embedding: Embedding = cast(Any, makes).embedding(rows_ve)
        return embedding
    return EmbeddingTable(source.dequantize(rows_ve))


def _are_equal(one: Weights, other: Weights) -> bool:
    if isinstance(one, PackedWeights) or isinstance(other, PackedWeights):
        return False
    return torch.equal(one, other)
