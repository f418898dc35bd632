"""Changes of the prefix cache as vLLM's events: runs of blocks, groups and salts."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenmill.plugin import RemovedBlock, StoredBlock
from tokenmill.plugins.observers.kv_events.wire import KVEventBatch, make_events

HASHES = [bytes(24) + number.to_bytes(8, "big") for number in range(2**63, 2**63 + 9)]
WINDOWS = (None, 8)


def stored(number: int, parent: int | None, **fields: Any) -> StoredBlock:
    return StoredBlock(
        block_hash=HASHES[number],
        parent_hash=None if parent is None else HASHES[parent],
        token_ids=(2 * number, 2 * number + 1),
        **fields,
    )


def removed(number: int, group: int = 0) -> RemovedBlock:
    return RemovedBlock(block_hash=HASHES[number], group=group)


def sent(*changes: StoredBlock | RemovedBlock) -> list[Any]:
    """The events of a batch, as msgpack without types gives them."""
    batch = KVEventBatch(1.5, make_events(changes, WINDOWS), 3)
    at, events, rank = msgspec.msgpack.decode(msgspec.msgpack.encode(batch))
    assert (at, rank) == (1.5, 3)
    return list(events)


def test_an_event_has_the_keys_and_values_of_vllm() -> None:
    [first, second] = sent(stored(0, None), removed(0))
    assert first == {
        "type": "BlockStored",
        "block_hashes": [2**63],
        "parent_block_hash": None,
        "token_ids": [0, 1],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    assert second == {
        "type": "BlockRemoved",
        "block_hashes": [2**63],
        "medium": "GPU",
        "group_idx": 0,
    }


def test_blocks_that_follow_each_other_are_one_event() -> None:
    events = sent(stored(1, 0), stored(2, 1), stored(4, 0), removed(1), removed(2), stored(5, 4))
    assert [(one["type"], [h - 2**63 for h in one["block_hashes"]]) for one in events] == [
        ("BlockStored", [1, 2]),
        ("BlockStored", [4]),
        ("BlockRemoved", [1, 2]),
        ("BlockStored", [5]),
    ]
    assert events[0]["token_ids"] == [2, 3, 4, 5]
    assert events[0]["parent_block_hash"] == 2**63


def test_groups_of_layers_are_apart_and_windows_are_named() -> None:
    events = sent(stored(1, 0), stored(2, 1, group=1), removed(1), removed(2, group=1))
    assert [one["group_idx"] for one in events] == [0, 1, 0, 1]
    assert events[1]["kv_cache_spec_kind"] == "sliding_window"
    assert events[1]["kv_cache_spec_sliding_window"] == 8


def test_a_salt_is_an_extra_key_of_the_first_block_of_a_prompt() -> None:
    [event] = sent(stored(0, None, cache_salt="s"), stored(1, 0, cache_salt="s"))
    assert event["extra_keys"] == [["s"], None]
    [event] = sent(stored(2, 1, cache_salt="s"))
    assert "extra_keys" not in event
