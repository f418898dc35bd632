"""The encoder cache: which items are encoded, who holds them, and whose pixels are needed.

A request holds an item from the grant of its first token until its last token is computed. An item
is encoded in the step that grants this first token, so no holder ever waits for another item.
Items that nobody holds stay until their bytes are needed; the least recently used one goes first.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ..errors import InvalidRequestError, OverloadedError
from ..plan import MediaWork
from ..requests.media import MediaItem, before_span
from .request import Request

MAX_PIXEL_BYTES = 1 << 30
"""Pixels of all live requests together. A single request may have more."""


@dataclass(slots=True)
class MediaCounts:
    """Numbers of the work of plans on the encoder cache."""

    num_queries: int = 0
    """Items that grants needed first."""
    num_hits: int = 0
    """Items of these that were encoded already."""
    num_encoded_tokens: int = 0


class MediaPool:
    """The state of the executor's encoder cache after the last plan."""

    def __init__(self, cache_bytes: int, bytes_per_token: int) -> None:
        self.cache_bytes = cache_bytes
        self.used = 0
        """Bytes of the encoded items."""
        self._counts = MediaCounts()
        self._bytes_per_token = bytes_per_token
        self._sizes: dict[bytes, int] = {}
        """Bytes of each encoded item."""
        self._holders: dict[bytes, int] = {}
        self._idle: dict[bytes, None] = {}
        """Encoded items that nobody holds, the least recently used first."""
        self._fresh: dict[bytes, MediaWork] = {}
        """Items that open plans encode. Until the commit only requests of the same plan use them:
        if its step raises, the steps after it must be able to go on."""
        self._live: dict[bytes, int] = {}
        """The number of live requests with an item."""
        self._new: list[MediaItem] = []
        """Items that became live since `take_new`."""
        self._pixel_bytes = 0
        self._evict: dict[bytes, None] = {}
        self._release: dict[bytes, None] = {}
        """Digests that the next plan names besides the changes of its step."""

    # Requests

    def add(self, requests: Sequence[Request]) -> None:
        """Count the items of new requests.

        Raises InvalidRequestError for an item that the cache cannot hold, and OverloadedError if
        there are too many pixels.
        """
        items = {item.digest: item for request in requests for item in request.media}
        largest = max(map(self.size_of, items.values()), default=0)
        if largest > self.cache_bytes:
            raise InvalidRequestError(
                f"an image of the prompt needs {largest} bytes of the encoder cache, which has "
                f"{self.cache_bytes}; send a smaller image",
                param="prompt",
            )
        new = sum(len(item.pixels) for item in items.values() if item.digest not in self._live)
        if self._live and self._pixel_bytes + new > MAX_PIXEL_BYTES:
            raise OverloadedError("too many images are waiting; try again later")
        self._pixel_bytes += new
        for digest, item in items.items():
            if digest not in self._live and digest not in self._release:
                self._new.append(item)
            self._release.pop(digest, None)
        for request in requests:
            for digest in request.media_digests:
                self._live[digest] = self._live.get(digest, 0) + 1

    def take_new(self) -> Sequence[MediaItem]:
        """The items whose pixels the executor must get before the next plan. It has those of all
        other live requests. It may also have older ones of these items, if an open plan is yet to
        release them."""
        new, self._new = self._new, []
        return new

    def end(self, request: Request) -> None:
        """Let go what an ended request held, and release the pixels that only it needed."""
        self.let_go(request)
        for digest, num_bytes in {i.digest: len(i.pixels) for i in request.media}.items():
            self._live[digest] -= 1
            if not self._live[digest]:
                del self._live[digest]
                self._pixel_bytes -= num_bytes
                self._release[digest] = None

    def let_go(self, request: Request) -> None:
        """Let go what a request holds: it ends, or will be computed again."""
        for item in request.held_items:
            self._drop(item.digest)
        request.num_passed_items = request.num_granted_items = 0

    def drop_passed(self, request: Request) -> None:
        """Let go the items all of whose tokens are computed."""
        for item in request.held_items:
            if item.end > request.num_computed_tokens:
                break
            self._drop(item.digest)
            request.num_passed_items += 1

    def _drop(self, digest: bytes) -> None:
        self._holders[digest] -= 1
        if not self._holders[digest]:
            del self._holders[digest]
            self._idle[digest] = None

    def size_of(self, item: MediaItem) -> int:
        """Bytes of an item in the cache."""
        return item.num_tokens * self._bytes_per_token

    # Plans

    def apply(self, step: MediaStep) -> MediaWork | None:
        """Make the changes of a step that becomes a plan. `hold` follows for each of its grants."""
        for digest in step.evicted:
            self.used -= self._sizes.pop(digest)
            del self._idle[digest]
            self._fresh.pop(digest, None)
        work = MediaWork(
            evict=(*self._evict, *step.evicted),
            release=tuple(self._release),
            encode=tuple(step.encoded),
        )
        for digest, size in step.encoded.items():
            self._counts.num_encoded_tokens += size // self._bytes_per_token
            self._sizes[digest] = size
            self.used += size
            self._fresh[digest] = work
        self._evict.clear()
        self._release.clear()
        return work if work.evict or work.release or work.encode else None

    def hold(self, request: Request, start: int, end: int, step: MediaStep) -> None:
        """Let a request hold the items that a grant of the tokens in [start, end) needs first."""
        first = first_item(request, start)
        if not request.num_granted_items:
            request.num_passed_items = request.num_granted_items = first
        for item in _before(request.media[first:], end):
            self._idle.pop(item.digest, None)
            self._holders[item.digest] = self._holders.get(item.digest, 0) + 1
            request.num_granted_items += 1
            self._counts.num_queries += 1
            self._counts.num_hits += item.digest not in step.encoded

    def take_counts(self) -> MediaCounts:
        """The counts since the last call."""
        counts, self._counts = self._counts, MediaCounts()
        return counts

    def commit(self, work: MediaWork | None) -> None:
        """Let all requests use what a plan has encoded."""
        for digest in self._fresh_of(work):
            del self._fresh[digest]

    def fail(self, work: MediaWork | None) -> None:
        """Forget what a plan should have encoded: its step raised. Its requests have let go."""
        for digest in self._fresh_of(work):
            del self._fresh[digest]
            self.used -= self._sizes.pop(digest)
            del self._idle[digest]
            self._evict[digest] = None

    def _fresh_of(self, work: MediaWork | None) -> Sequence[bytes]:
        if work is None:
            return ()
        return [digest for digest in work.encode if self._fresh.get(digest) is work]

    # For a step

    def is_encoded(self, digest: bytes) -> bool:
        return digest in self._sizes

    def is_usable(self, digest: bytes, request: Request) -> bool:
        """Whether a step after the open plans may use an encoded item for a request."""
        return digest not in self._fresh or any(
            digest == item.digest for item in request.held_items
        )

    @property
    def idle(self) -> KeysView[bytes]:
        """Encoded items that nobody holds, the least recently used first."""
        return self._idle.keys()

    def stored_size(self, digest: bytes) -> int:
        """Bytes of an encoded item."""
        return self._sizes[digest]

    def check(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError unless holders, bytes and pixels agree with the requests."""
        holders: dict[bytes, int] = {}
        live: dict[bytes, int] = {}
        for request in requests:
            for item in request.held_items:
                holders[item.digest] = holders.get(item.digest, 0) + 1
            if request.finish_reason is None:
                for digest in request.media_digests:
                    live[digest] = live.get(digest, 0) + 1
        assert holders == self._holders, "the holders of items are out of step"
        assert live == self._live, "the pixels are counted wrong"
        assert self._holders.keys() | self._idle.keys() == self._sizes.keys(), "an item is lost"
        assert not self._holders.keys() & self._idle.keys(), "a held item may be evicted"
        assert self.used == sum(self._sizes.values()) <= self.cache_bytes, "bytes are out of step"


class MediaStep:
    """The changes of a step that is being decided. The pool itself does not change."""

    def __init__(self, pool: MediaPool) -> None:
        self.encoded: dict[bytes, int] = {}
        """Bytes of the items to encode."""
        self.evicted: dict[bytes, None] = {}
        self._costs: dict[bytes, int] = {}
        self._takers: dict[bytes, set[str]] = {}
        """Engine ids of the requests whose grants need an item."""
        self._pool = pool

    def reach(self, request: Request, start: int, num_tokens: int, budget: int) -> int:
        """The number of tokens from `start` on, at most `num_tokens`, that a grant can have: it
        ends before the first item that cannot be encoded now, or whose span would be cut.

        Tokens and costs share the budget. The first item that a step encodes may cost more.
        `num_tokens` cuts no span.
        """
        room = self._room()
        is_first = not self.encoded
        seen: set[bytes] = set()
        for item in request.media[first_item(request, start) :]:
            before = max(0, item.start - start)
            if before >= num_tokens:
                break
            digest = item.digest
            if digest in self.encoded or digest in seen:
                continue
            seen.add(digest)
            if self._is_cached(digest):
                if not self._pool.is_usable(digest, request):
                    return before
                size = self._pool.stored_size(digest) if self._is_evictable(digest) else 0
            else:
                size = self._pool.size_of(item)
                if not (is_first or before + item.cost < budget):
                    return before
                budget = max(budget - item.cost, item.end - start if is_first else 0)
                is_first = False
            if size > room:
                return before
            room -= size
            num_tokens = min(num_tokens, budget)
        return before_span(request.media, start + num_tokens) - start

    def take(self, request: Request, start: int, end: int) -> int:
        """Take the items of a grant; returns what encoding them costs."""
        items = list(_before(request.media[first_item(request, start) :], end))
        for item in items:  # first, so that making room evicts none of them
            self._takers.setdefault(item.digest, set()).add(request.engine_id)
        cost = 0
        for item in items:
            if item.digest not in self.encoded and not self._is_cached(item.digest):
                self._encode(item)
                cost += item.cost
        return cost

    def give_back(self, request: Request) -> int:
        """Take back the items of a grant that is taken back; returns what they would have cost."""
        cost = 0
        for digest, takers in list(self._takers.items()):
            takers.discard(request.engine_id)
            if not takers:
                del self._takers[digest]
                if digest in self.encoded:
                    del self.encoded[digest]
                    cost += self._costs.pop(digest)
        return cost

    def _encode(self, item: MediaItem) -> None:
        size = self._pool.size_of(item)
        missing = size - self._free()
        for digest in self._pool.idle:
            if missing <= 0:
                break
            if self._is_evictable(digest):
                self.evicted[digest] = None
                missing -= self._pool.stored_size(digest)
        assert missing <= 0, "`reach` has found room"
        self.encoded[item.digest] = size
        self._costs[item.digest] = item.cost

    def _is_cached(self, digest: bytes) -> bool:
        return self._pool.is_encoded(digest) and digest not in self.evicted

    def _is_evictable(self, digest: bytes) -> bool:
        is_idle = digest in self._pool.idle
        return is_idle and digest not in self.evicted and digest not in self._takers

    def _free(self) -> int:
        used = self._pool.used + sum(self.encoded.values())
        return self._pool.cache_bytes - used + sum(map(self._pool.stored_size, self.evicted))

    def _room(self) -> int:
        """Bytes for new items: free ones, and those of items that nobody needs."""
        evictable = filter(self._is_evictable, self._pool.idle)
        return self._free() + sum(map(self._pool.stored_size, evictable))


def first_item(request: Request, start: int) -> int:
    """The index of the first item that a grant from `start` on must take: the request holds those
    before it, or their tokens are computed."""
    first = request.num_granted_items
    while first < len(request.media) and request.media[first].end <= start:
        first += 1
    return first


def _before(items: Sequence[MediaItem], end: int) -> Iterable[MediaItem]:
    return takewhile(lambda item: item.start < end, items)
