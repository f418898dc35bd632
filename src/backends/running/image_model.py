"""Steps with images: rows of the encoder stand in the places of tokens.

Such a step is computed layer by layer. All others stay one call of the whole model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ...core.plan import Grant, MediaWork
from ...core.requests.media import MediaItem
from ..models.base import TakesRows
from ..state.input_batch import InputBatch
from ..state.request_state import RequestState
from ..vision.encoded_items import EncodedItems
from .layered_model import LayeredModel

Rows = Sequence[tuple[int, torch.Tensor]]
"""Stretches of rows, each with the index of its first token in the batch."""


class ImageModel:
    """Computes the steps of a decoder that have images."""

    def __init__(self, decoder: TakesRows, layered: LayeredModel, items: EncodedItems) -> None:
        self._decoder, self._items = decoder, items
        self.layered = layered
        self.seconds = 0.0
        """The time of the last `encode`."""

    def take(self, items: Sequence[MediaItem]) -> None:
        """Keep pixels; see TakesMedia."""
        self._items.take(items)

    def forget(self, work: MediaWork) -> None:
        """Forget what a plan evicts and releases."""
        self._items.forget(work)

    def encode(self, work: MediaWork) -> None:
        began = time.monotonic()
        self._items.encode(work)
        self.seconds = time.monotonic() - began if work.encode else 0.0

    def rows(
        self, batch: InputBatch, grants: Sequence[Grant], states: Sequence[RequestState]
    ) -> Rows:
        """The rows of images in a batch."""
        found: list[tuple[int, torch.Tensor]] = []
        first = 0
        for index in batch.grant_order:
            grant, start = grants[index], states[index].start
            if start.media:
                stretches = self._items.rows_of(start, grant)
                found += [(first + at, rows) for at, rows in stretches]
            first += grant.num_tokens
        return found

    def logits(self, batch: InputBatch, rows: Rows) -> torch.Tensor:
        """float32 [r, v] of the batch's sampled rows; see StepModel."""
        return self.layered.logits_from(self._embed(batch, rows), batch, self._decoder)

    def forward(self, batch: InputBatch, rows: Rows) -> None:
        """Compute a stage's part of the step; see StageModel."""
        self.layered.forward_from(self._embed(batch, rows), batch, self._decoder)

    def _embed(self, batch: InputBatch, rows: Rows) -> torch.Tensor:
        hidden_te = self._decoder.embed(batch.token_ids_t)
        for first, stretch in rows:
            hidden_te[first : first + len(stretch)] = stretch
        return hidden_te
