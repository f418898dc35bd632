"""vLLM's messages about KV blocks: batches in msgpack.

A batch is an array, an event in it is a map whose key "type" is the name of its class. Fields that
have their default value are left out. Source: vllm/distributed/kv_events.py of vLLM 0.23 and later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ....plugin import RemovedBlock, StoredBlock

MEDIUM = "GPU"
"""The memory of the blocks. vLLM says GPU for its main KV cache on every device, and routers count
other names as slower memory."""


class KVEvent(msgspec.Struct, tag=True, omit_defaults=True):
    """An event about blocks. The names of subclasses and fields are vLLM's."""


class BlockStored(KVEvent):
    """Blocks that follow each other were added to the prefix cache."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    """The tokens of all these blocks."""
    block_size: int
    lora_id: None
    medium: str
    lora_name: None
    extra_keys: list[tuple[str] | None] | None = None
    """Per block, what its hash covers besides tokens: the salt, in the first block of a prompt."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVEvent):
    """Blocks were removed from the prefix cache."""

    block_hashes: list[int]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(KVEvent):
    """The prefix cache is empty."""


class KVEventBatch(msgspec.Struct, array_like=True):
    """The content of one message."""

    ts: float
    """Seconds since 1970."""
    events: Sequence[KVEvent]
    data_parallel_rank: int


def short_hash(block_hash: bytes) -> int:
    """The last 64 bits, as vLLM sends hashes by default. Not all routers can read bytes."""
    return int.from_bytes(block_hash[-8:], "big")


def make_events(
    changes: Iterable[StoredBlock | RemovedBlock], windows: Sequence[int | None]
) -> list[KVEvent]:
    """The events for changes of the prefix cache, in order. `windows`: `ModelInfo.kv_windows`.

    Blocks that follow each other are one event.
    """
    events: list[KVEvent] = []
    last: StoredBlock | RemovedBlock | None = None
    for change in changes:
        event = events[-1] if events else None
        if isinstance(change, RemovedBlock):
            if isinstance(event, BlockRemoved) and event.group_idx == change.group:
                event.block_hashes.append(short_hash(change.block_hash))
            else:
                events.append(_removed(change))
        elif (
            isinstance(event, BlockStored)
            and isinstance(last, StoredBlock)
            and change.parent_hash == last.block_hash
            and change.group == last.group
        ):
            event.block_hashes.append(short_hash(change.block_hash))
            event.token_ids += change.token_ids
            if event.extra_keys is not None:
                event.extra_keys.append(None)
        else:
            events.append(_stored(change, windows[change.group]))
        last = change
    return events


def _stored(block: StoredBlock, window: int | None) -> BlockStored:
    parent, salt = block.parent_hash, block.cache_salt
    return BlockStored(
        block_hashes=[short_hash(block.block_hash)],
        parent_block_hash=None if parent is None else short_hash(parent),
        token_ids=list(block.token_ids),
        block_size=len(block.token_ids),
        lora_id=None,
        medium=MEDIUM,
        lora_name=None,
        extra_keys=[(salt,)] if salt and parent is None else None,
        group_idx=block.group,
        kv_cache_spec_kind="full_attention" if window is None else "sliding_window",
        kv_cache_spec_sliding_window=window,
    )


def _removed(block: RemovedBlock) -> BlockRemoved:
    return BlockRemoved(
        block_hashes=[short_hash(block.block_hash)], medium=MEDIUM, group_idx=block.group
    )
