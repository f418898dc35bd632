"""The blocks of the KV cache: reference counts, the free list and the prefix cache.

A block is in exactly one state: *held* (its reference count is above 0), *cached* (not held, but
its content has a hash and may be found again) or *free*. `take` prefers free blocks; if there are
none, it evicts the least recently used cached block.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ...contract.activity import BlockState
from ...contract.events import RemovedBlock, StoredBlock
from ...kv_memory import max_blocks_held
from ...requests.media import MediaItem, media_in
from .block_list import BlockList


class _Did(Enum):
    """A change to a block inside a step, recorded so that it can be undone."""

    TAKE_FREE = auto()
    EVICT = auto()
    REVIVE = auto()
    SHARE = auto()
    DROP = auto()
    FREE = auto()
    CACHE = auto()


@dataclass(frozen=True, slots=True)
class _Change:
    did: _Did
    block: int
    before: int = -1
    """Its predecessor in the list that it was removed from."""
    evicted_hash: bytes | None = None


def hash_root(*identity: str) -> bytes:
    """First hash of a hash chain. Requests share blocks only if their roots are equal."""
    # repr keeps the parts apart, whatever characters a client puts into a salt.
    return hashlib.sha256(repr(identity).encode()).digest()


def hash_chain(
    parent: bytes,
    token_ids: Sequence[int],
    block_size: int,
    media: Sequence[MediaItem] = (),
    offset: int = 0,
) -> list[bytes]:
    """A hash per full block, over the hash of the block before it, its own token ids, and the
    images that have tokens in it. `media`: those of the prompt; `offset`: position of the first
    token in it.

    So two equal hashes mean equal blocks after equal beginnings. Source: the automatic prefix
    caching of vLLM.
    """
    found = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        seen = media_in(media, offset + start, offset + start + block_size) if media else b""
        parent = hash_block(parent, token_ids[start : start + block_size], seen)
        found.append(parent)
    return found


def hash_block(parent: bytes, token_ids: Sequence[int], media: bytes = b"") -> bytes:
    """SHA-256 over the parent's hash, the token ids and the images."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes() + media).digest()


_HASH_SIZE = hashlib.sha256().digest_size


def _key(block_hash: bytes, group: int) -> bytes:
    """Key of a group's block. Groups of layers have different KV for the same tokens."""
    return block_hash + group.to_bytes(1, "big") if group else block_hash


def _removed(key: bytes) -> RemovedBlock:
    return RemovedBlock(block_hash=key[:_HASH_SIZE], group=int.from_bytes(key[_HASH_SIZE:], "big"))


class BlockPool:
    """Hands out blocks, shares them and finds cached ones. Changes in a step can be rolled back."""

    def __init__(
        self, num_blocks: int, block_size: int, windows: Sequence[int | None] = (None,)
    ) -> None:
        """`windows`: see `ModelInfo.kv_windows`."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.windows = tuple(windows)
        self.has_windows = any(window is not None for window in windows)
        self._ref_counts = [0] * num_blocks
        self._free = BlockList(num_blocks)
        self._cached = BlockList(num_blocks)
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._tokens: list[tuple[int, ...]] = [()] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._journal: list[_Change] | None = None
        self.num_taken = self.num_freed = 0
        """Number of times that a block became held, and that one became available again."""
        self._counts_before = (0, 0)
        self.changes: list[StoredBlock | RemovedBlock] | None = None
        """Changes of the prefix cache since `take_changes`; None: they are not recorded."""
        for block in range(num_blocks):
            self._free.append(block)

    @property
    def num_available(self) -> int:
        """Number of blocks that could be taken now: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def prefix_cache_keys(self) -> KeysView[bytes]:
        """The hash of each block in the prefix cache, with its group as one more byte if it is not
        0."""
        return self._by_hash.keys()

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    def num_blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that this many tokens need. The last one may be partly filled."""
        return -(-num_tokens // self.block_size)

    def num_passed_blocks(self, num_computed_tokens: int) -> tuple[int, ...]:
        """Per group, the number of blocks that its window has passed: the next tokens see none of
        their tokens."""
        size, end = self.block_size, num_computed_tokens + 1
        return tuple([0 if w is None else max(0, end - w) // size for w in self.windows])

    def max_blocks_held(self, num_tokens: int, step_tokens: int) -> tuple[int, ...]:
        """Per group, the maximum number of blocks that a sequence holds at one time; see
        kv_memory.py."""
        size = self.block_size
        return tuple(
            [
                max_blocks_held(num_tokens, block_size=size, window=w, step_tokens=step_tokens)
                for w in self.windows
            ]
        )

    def take(self) -> int:
        """Take a block for exclusive use. At least one block must be available."""
        if len(self._free):
            block = self._free.first
            self._note(_Did.TAKE_FREE, block, self._free.remove(block))
        else:
            block = self._cached.first
            self._note(_Did.EVICT, block, self._cached.remove(block), self._forget_hash(block))
        self._ref_counts[block] = 1
        self.num_taken += 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a block that is held or cached."""
        if self._ref_counts[block] == 0:
            self._note(_Did.REVIVE, block, self._cached.remove(block))
            self.num_taken += 1
        else:
            self._note(_Did.SHARE, block)
        self._ref_counts[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        """Remove one holder of each block.

        Pass the last blocks of a block table first: blocks that are dropped first are evicted
        first, and the beginning of a prompt is the part that later requests can use.
        """
        for block in blocks:
            assert self._ref_counts[block] > 0, f"block {block} is not held"
            self._ref_counts[block] -= 1
            if self._ref_counts[block]:
                self._note(_Did.DROP, block)
                continue
            self.num_freed += 1
            if self._hashes[block] is None:
                self._free.append(block)
                self._note(_Did.FREE, block)
            else:
                self._cached.append(block)
                self._note(_Did.CACHE, block)

    def is_shared(self, block: int) -> bool:
        return self._ref_counts[block] > 1

    def find(self, block_hash: bytes, token_ids: Sequence[int], group: int = 0) -> int | None:
        """The group's block with this hash, if its token ids are equal, too. Otherwise None."""
        block = self._by_hash.get(_key(block_hash, group))
        if block is None or self._tokens[block] != tuple(token_ids):
            return None
        return block

    def publish(
        self,
        block: int,
        block_hash: bytes,
        token_ids: Sequence[int],
        group: int = 0,
        *,
        parent_hash: bytes | None = None,
        cache_salt: str | None = None,
        media: Sequence[MediaItem] = (),
        start: int = 0,
    ) -> None:
        """Add a group's full, computed block to the prefix cache, unless it has an equal block
        already. `parent_hash` and `cache_salt`: see `StoredBlock`. `media`: the images of the
        prompt, in which the block begins at token `start`."""
        assert self._journal is None, "blocks are published at commit, never inside a step"
        assert self._ref_counts[block] > 0
        key = _key(block_hash, group)
        if key in self._by_hash or self._hashes[block] is not None:
            return
        self._hashes[block] = key
        self._tokens[block] = tuple(token_ids)
        self._by_hash[key] = block
        if self.changes is not None:
            self.changes.append(
                StoredBlock(
                    block_hash=block_hash,
                    parent_hash=parent_hash,
                    token_ids=self._tokens[block],
                    group=group,
                    cache_salt=cache_salt,
                    media=media_in(media, start, start + self.block_size),
                )
            )

    def forget(self) -> bool:
        """Remove the blocks that nobody holds from the prefix cache. Return whether it is empty
        now."""
        assert self._journal is None, "not inside a step"
        for block in tuple(self._cached):
            self._cached.remove(block)
            key = self._forget_hash(block)
            self._free.append(block)
            if self.changes is not None:
                self.changes.append(_removed(key))
        return not self._by_hash

    def take_changes(self) -> tuple[StoredBlock | RemovedBlock, ...]:
        """Return and forget the changes of the prefix cache that were recorded."""
        if not self.changes:
            return ()
        changes, self.changes = tuple(self.changes), []
        return changes

    def begin(self) -> None:
        """Start to record changes, so that `rollback` can undo them."""
        assert self._journal is None
        self._journal = []
        self._counts_before = self.num_taken, self.num_freed

    def confirm(self) -> None:
        """Keep all changes since `begin`."""
        if self.changes is not None and self._journal:
            evicted = [change.evicted_hash for change in self._journal]
            self.changes += [_removed(key) for key in evicted if key is not None]
        self._journal = None

    def rollback(self) -> None:
        """Undo all changes since `begin`: reference counts, hashes, and the order of both lists."""
        assert self._journal is not None
        for change in reversed(self._journal):
            self._undo(change)
        self._journal = None
        self.num_taken, self.num_freed = self._counts_before

    def check(self, expected_ref_counts: Sequence[int]) -> None:
        """Raise AssertionError unless each block has one state and the expected reference count."""
        free, cached = list(self._free), list(self._cached)
        held = [block for block, count in enumerate(self._ref_counts) if count]
        hashes, hash_of = self._hashes, self._hashes.__getitem__
        assert sorted([*free, *cached, *held]) == list(range(self.num_blocks)), (
            "a block is in two states, or none"
        )
        assert self._ref_counts == list(expected_ref_counts), (
            "reference counts differ from the block tables"
        )
        assert set(map(hash_of, free)) <= {None}, "a free block has a hash"
        assert None not in map(hash_of, cached), "a cached block has no hash"
        assert (
            list(map(hash_of, self._by_hash.values())) == list(self._by_hash)
            and len(self._by_hash) + hashes.count(None) == self.num_blocks
        ), "hashes are out of step"

    def describe(self) -> str:
        """The states of all blocks, as `Activity.blocks` has them."""
        free, cached, held, shared = map(str, BlockState)
        states = [
            (held if holders == 1 else shared) if holders else free if key is None else cached
            for holders, key in zip(self._ref_counts, self._hashes, strict=True)
        ]
        runs = re.finditer(r"(.)\1*", "".join(states))
        return "".join([f"{run.end() - run.start()}{run[1]}" for run in runs])

    def digest(self) -> tuple[object, ...]:
        """The whole state, for comparison: it is equal before a step and after its rollback."""
        return tuple(self._ref_counts), tuple(self._free), tuple(self._cached), tuple(self._hashes)

    def _forget_hash(self, block: int) -> bytes:
        block_hash = self._hashes[block]
        assert block_hash is not None
        del self._by_hash[block_hash]
        self._hashes[block] = None
        return block_hash

    def _note(
        self, did: _Did, block: int, before: int = -1, evicted_hash: bytes | None = None
    ) -> None:
        if self._journal is not None:
            self._journal.append(_Change(did, block, before, evicted_hash))

    def _undo(self, change: _Change) -> None:
        block = change.block
        match change.did:
            case _Did.TAKE_FREE:
                self._ref_counts[block] = 0
                self._free.restore(block, change.before)
            case _Did.EVICT:
                # Its token ids are still stored: only `publish` overwrites them, and it is never
                # called inside a step.
                assert change.evicted_hash is not None
                self._ref_counts[block] = 0
                self._cached.restore(block, change.before)
                self._hashes[block] = change.evicted_hash
                self._by_hash[change.evicted_hash] = block
            case _Did.REVIVE:
                self._ref_counts[block] = 0
                self._cached.restore(block, change.before)
            case _Did.SHARE:
                self._ref_counts[block] -= 1
            case _Did.DROP:
                self._ref_counts[block] += 1
            case _Did.FREE:
                self._free.remove(block)
                self._ref_counts[block] = 1
            case _Did.CACHE:
                self._cached.remove(block)
                self._ref_counts[block] = 1
