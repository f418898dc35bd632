"""Simulated images: an encoder that makes numbers of pixels, and a cache that follows plans."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ...core.plan import MediaWork, RequestStart
from ...core.requests.media import MediaItem

PLACEHOLDER = 7
"""The token in the places of items. Elsewhere it is a token like any other."""
BYTES_PER_TOKEN = 4


def row_values(pixels: bytes, num_tokens: int) -> list[int]:
    """The simulated encoder: numbers that no token has."""
    digest = int.from_bytes(hashlib.blake2b(pixels, digest_size=6).digest(), "little")
    return [-(2 + digest * 64 + row) for row in range(num_tokens)]


def with_rows(token_ids: Sequence[int], media: Sequence[MediaItem]) -> list[int]:
    """The tokens of a prompt with the rows of its items in their places."""
    found = list(token_ids)
    for item in media:
        found[item.start : item.end] = row_values(item.pixels, item.num_tokens)
    return found


class SimulatedEncoder:
    """Pixels and rows by digest. Raises AssertionError for a plan that breaks the rules."""

    def __init__(self, cache_bytes: int) -> None:
        self._cache_bytes = cache_bytes
        self._items: dict[bytes, list[MediaItem]] = {}
        self._rows: dict[bytes, list[int]] = {}

    def take(self, items: Sequence[MediaItem]) -> None:
        """See TakesMedia."""
        for item in items:
            self._items.setdefault(item.digest, []).append(item)

    def follow(self, work: MediaWork, *, fails: bool = False) -> None:
        """Do what a plan says. `fails`: its step raises before it encodes."""
        for digest in work.evict:
            self._rows.pop(digest, None)
        for digest in work.release:
            assert digest in self._items, "unknown pixels are released"
            self._items[digest].pop(0)
            if not self._items[digest]:
                del self._items[digest]
        for digest in () if fails else work.encode:
            assert digest in self._items, "an item is encoded without its pixels"
            assert digest not in self._rows, "an item is encoded twice"
            item = self._items[digest][-1]
            self._rows[digest] = row_values(item.pixels, item.num_tokens)
        used = BYTES_PER_TOKEN * sum(map(len, self._rows.values()))
        assert used <= self._cache_bytes, "the encoder cache is too full"

    def known(self, start: RequestStart) -> list[int]:
        """The tokens of a request, with rows in the places of its items."""
        items = [
            MediaItem(
                digest=place.digest,
                start=place.start,
                num_tokens=place.num_tokens,
                cost=0,
                shape=(),
                pixels=self._items[place.digest][-1].pixels,
            )
            for place in start.media
        ]
        return with_rows(start.token_ids, items)

    def rows(self, start: RequestStart, begin: int, end: int) -> dict[int, int]:
        """The rows in [begin, end), by position, as they are in the cache."""
        found: dict[int, int] = {}
        for place in start.media:
            first, last = max(begin, place.start), min(end, place.start + place.num_tokens)
            if first < last:
                assert place.digest in self._rows, "an item is not encoded"
                is_whole = self._items[place.digest][-1].is_whole
                assert place.is_whole == is_whole, "a plan does not say that a place is a span"
                rows = self._rows[place.digest]
                found |= {at: rows[at - place.start] for at in range(first, last)}
        return found
