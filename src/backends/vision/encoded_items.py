"""The encoder cache of an executor: the pixels and the rows of items, as plans say."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from threading import Lock

import torch

from ...core.plan import Grant, MediaWork, RequestStart
from ...core.requests.media import MediaItem
from .base import Tower


class EncodedItems:
    """Encodes items, and finds their rows for grants.

    The engine's thread calls `take`, all others are the device thread's.
    """

    def __init__(self, tower: Tower) -> None:
        self._tower = tower
        self._pixels: dict[bytes, deque[MediaItem]] = {}
        """By digest, what was taken and not released."""
        self._lock = Lock()
        self.device = tower.device
        self._rows: dict[bytes, torch.Tensor] = {}
        """[rows, hidden size of the text model], by digest."""

    def take(self, items: Sequence[MediaItem]) -> None:
        """Keep pixels; see TakesMedia."""
        with self._lock:
            for item in items:
                self._pixels.setdefault(item.digest, deque()).append(item)

    def forget(self, work: MediaWork) -> None:
        """Forget what a plan evicts and releases."""
        for digest in work.evict:
            self._rows.pop(digest, None)
        with self._lock:
            for digest in work.release:
                self._release(digest)

    def _release(self, digest: bytes) -> None:
        if (taken := self._pixels.get(digest)) is None:
            return  # they could not be taken
        taken.popleft()
        if not taken:
            del self._pixels[digest]

    def encode(self, work: MediaWork) -> None:
        """Encode what a plan says, after `forget`. Raises what the encoder raises."""
        with self._lock:
            items = [self._pixels[digest][-1] for digest in work.encode]
        for batch in _batches(items, self._tower.images_at_once):
            self._encode(batch)

    def _encode(self, items: Sequence[MediaItem]) -> None:
        """Encode items of one shape together."""
        pixels = bytearray().join(item.pixels for item in items)
        pixels_nyxc = torch.frombuffer(pixels, dtype=torch.uint8).view(-1, *items[0].shape)
        for item, rows in zip(items, self._tower.encode(pixels_nyxc), strict=True):
            if len(rows) != item.num_tokens:
                raise ValueError(f"an image has {len(rows)} rows and {item.num_tokens} tokens")
            # A part of a batch would keep the whole batch in memory.
            self._rows[item.digest] = rows if len(items) == 1 else rows.clone()

    def rows_of(self, start: RequestStart, grant: Grant) -> list[tuple[int, torch.Tensor]]:
        """The rows that stand in a grant, each stretch with its place from the grant's first token
        on."""
        begin, end = grant.start, grant.start + grant.num_tokens
        found = []
        for place in start.media:
            first, last = max(begin, place.start), min(end, place.start + place.num_tokens)
            if first < last:
                rows = self._rows[place.digest][first - place.start : last - place.start]
                found.append((first - begin, rows))
        return found


def _batches(items: Sequence[MediaItem], most: int) -> Iterator[Sequence[MediaItem]]:
    """Items that follow each other and have one shape, at most `most` together."""
    for _, group in groupby(items, key=lambda item: item.shape):
        same = list(group)
        for first in range(0, len(same), most):
            yield same[first : first + most]
