"""The encoder cache of an executor: the pixels and the rows of items, as plans say."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core.plan import Grant, MediaWork, RequestStart
from ...core.requests.media import MediaItem
from .tower import VisionTower


class EncodedItems:
    """Encodes items, and finds their rows for grants.

    The engine's thread calls `take`, all others are the device thread's.
    """

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self._pixels: dict[bytes, MediaItem] = {}
        self._rows: dict[bytes, torch.Tensor] = {}
        """[rows, hidden size of the text model], by digest."""

    def take(self, items: Sequence[MediaItem]) -> None:
        """Keep pixels; see TakesMedia."""
        for item in items:
            self._pixels.setdefault(item.digest, item)

    def follow(self, work: MediaWork) -> None:
        """Do what a plan says. An item that cannot be encoded raises."""
        for digest in work.evict:
            self._rows.pop(digest, None)
        for digest in work.release:
            self._pixels.pop(digest, None)
        for digest in work.encode:
            self._rows[digest] = self._encode(self._pixels[digest])

    def _encode(self, item: MediaItem) -> torch.Tensor:
        pixels = torch.frombuffer(bytearray(item.pixels), dtype=torch.uint8).view(item.shape)
        rows = self._tower.encode(pixels)
        if len(rows) != item.num_tokens:
            raise ValueError(f"an image has {len(rows)} rows and {item.num_tokens} placeholders")
        return rows

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
