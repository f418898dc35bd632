"""Steps with images: rows of the encoder stand in the places of tokens, tokens of an image may see
each other, and images may change the rotary positions of the tokens after them.

Shape suffixes: t tokens of the step, e hidden size, r sampled rows, v vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...core.plan import Grant, MediaWork
from ...core.requests.media import MediaItem
from ..attention.base import AttentionBatch
from ..models.base import TakesRows
from ..sampling.ops import SamplingOps
from ..state.input_batch import InputBatch
from ..state.request_state import RequestState
from ..state.rotary_positions import rotary_positions
from ..vision.encoded_items import EncodedItems
from ..weights.config.model_config import ModelConfig

_new_event: Any = torch.cuda.Event  # torch gives it no types


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStep:
    """A step with images."""

    batch: InputBatch
    """The batch, with the last keys and the rotary positions of its tokens."""
    rows: Sequence[tuple[int, torch.Tensor]]
    """Stretches of rows, each with the index of its first token in the batch."""


class RowsModel(Protocol):
    """A model that computes a whole step, also from given hidden states. See StepModel and
    StageModel for the other members."""

    def logits(self, batch: InputBatch) -> torch.Tensor: ...
    def logits_from(self, hidden_te: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """As `logits`, from the hidden states before the first layer, contiguous."""
        ...

    def forward(self, batch: InputBatch) -> torch.Tensor: ...
    def forward_from(self, hidden_te: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """As `forward`, from the hidden states before the first layer, contiguous."""
        ...

    def hidden_states(self) -> torch.Tensor: ...
    @property
    def sampling(self) -> SamplingOps: ...


class ImageModel:
    """Computes the steps of a decoder that have images."""

    def __init__(
        self,
        decoder: TakesRows,
        model: RowsModel,
        items: EncodedItems | None,
        placeholder: int | None = None,
    ) -> None:
        """`model` runs the decoder. `items`: None in a stage after the first one, which gets hidden
        states. `placeholder`: the token that rows replace."""
        self._decoder, self._items, self._placeholder = decoder, items, placeholder
        self.model = model
        self._has_grids = has_sections(decoder.config)
        self._events: tuple[Any, Any] | None = None
        """CUDA events before and after the last `encode`."""
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """The time of the last `encode`. On a GPU this waits for its end."""
        if self._events is None:
            return self._seconds
        begin, end = self._events
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000

    def take(self, items: Sequence[MediaItem]) -> None:
        """Keep pixels; see TakesMedia."""
        if self._items is not None:
            self._items.take(items)

    def forget(self, work: MediaWork) -> None:
        """Forget what a plan evicts and releases."""
        if self._items is not None:
            self._items.forget(work)

    def encode(self, work: MediaWork) -> None:
        """Encode what a plan says."""
        self._events, self._seconds = None, 0.0
        if self._items is None or not work.encode:
            return
        if self._items.device.type == "cpu":
            began = time.monotonic()
            self._items.encode(work)
            self._seconds = time.monotonic() - began
            return
        with torch.cuda.device(self._items.device):
            begin, end = (_new_event(enable_timing=True) for _ in range(2))
            begin.record()
            self._items.encode(work)
            end.record()
        self._events = begin, end

    def step(
        self, batch: InputBatch, grants: Sequence[Grant], states: Sequence[RequestState]
    ) -> ImageStep | None:
        """The images in a step. None: it has none, and is computed like any other step."""
        ordered = [(grants[index], states[index]) for index in batch.grant_order]
        if not any(state.start.media for _, state in ordered):
            return None
        rows, device = list(self._rows(ordered)), batch.token_ids_t.device
        changed = batch
        if (last_keys_t := find_last_keys(ordered)) is not None:
            keys_t = torch.from_numpy(last_keys_t).to(device, non_blocking=True)
            changed = replace(changed, attention=_with_last_keys(batch.attention, keys_t))
        if self._has_grids:
            turns_3t = torch.from_numpy(find_turns(ordered)).to(device, non_blocking=True)
            changed = replace(changed, rotary_3t=turns_3t)
        return ImageStep(batch=changed, rows=rows) if rows or changed is not batch else None

    def _rows(
        self, ordered: Sequence[tuple[Grant, RequestState]]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        if self._items is None:
            return
        first = 0
        for grant, state in ordered:
            for at, rows in self._items.rows_of(state.start, grant):
                yield first + at, rows
            first += grant.num_tokens

    def logits(self, step: ImageStep) -> torch.Tensor:
        """float32 [r, v] of the batch's sampled rows; see StepModel."""
        if not step.rows:
            return self.model.logits(step.batch)
        return self.model.logits_from(self._embed(step), step.batch)

    def forward(self, step: ImageStep) -> None:
        """Compute a stage's part of the step; see StageModel."""
        if not step.rows:
            self.model.forward(step.batch)
        else:
            self.model.forward_from(self._embed(step), step.batch)

    def _embed(self, step: ImageStep) -> torch.Tensor:
        assert self._placeholder is not None, "only a stage without items has none"
        token_ids_t = step.batch.token_ids_t
        hidden_te = self._decoder.embed(token_ids_t)
        for first, stretch in step.rows:
            place = slice(first, first + len(stretch))
            # Other tokens of an item, as between the lines of an image, keep their embeddings.
            is_row_t = token_ids_t[place].eq(self._placeholder)
            hidden_te[place] = torch.where(is_row_t[:, None], stretch, hidden_te[place])
        return hidden_te


def has_sections(config: ModelConfig) -> bool:
    """Whether the rotary positions of a token depend on its place in an image."""
    return any(kind.rope is not None and kind.rope.sections for kind in config.layer_kinds)


def find_turns(ordered: Sequence[tuple[Grant, RequestState]]) -> npt.NDArray[np.int64]:
    """The rotary positions of all tokens of a step, int64 [3, t]; see rotary_positions."""
    parts = [
        rotary_positions(state.start.media, grant.start, grant.num_tokens)
        for grant, state in ordered
    ]
    return np.concatenate(parts, axis=1)


def find_last_keys(
    ordered: Sequence[tuple[Grant, RequestState]],
) -> npt.NDArray[np.int32] | None:
    """The last key that each token of a step sees, int32 [t]; see AttentionBatch.last_keys_t.

    None: no grant has tokens that see each other.
    """
    spans = [list(_spans(grant, state)) for grant, state in ordered]
    if not any(spans):
        return None
    parts = []
    for (grant, _), own in zip(ordered, spans, strict=True):
        last_keys = np.arange(grant.start, grant.start + grant.num_tokens, dtype=np.int32)
        for begin, end in own:
            last_keys[begin - grant.start : end - grant.start] = end - 1
        parts.append(last_keys)
    return np.concatenate(parts)


def _spans(grant: Grant, state: RequestState) -> Iterator[tuple[int, int]]:
    """The positions of a grant's tokens that see each other: [begin, end) of each image."""
    for place in state.start.media:
        begin = max(place.start, grant.start)
        end = min(place.start + place.num_tokens, grant.start + grant.num_tokens)
        if place.is_whole and begin < end:
            yield begin, end


def _with_last_keys(batch: AttentionBatch, last_keys_t: torch.Tensor) -> AttentionBatch:
    others = [replace(other, last_keys_t=last_keys_t) for other in batch.other_groups]
    return replace(batch, last_keys_t=last_keys_t, other_groups=others)
