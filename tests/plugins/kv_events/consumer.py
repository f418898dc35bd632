"""A consumer of KV events, written from docs/serving/kv-events.md: an index of cached blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

PATIENCE = 60.0
"""Seconds after which a batch that does not come fails a test."""
END = (-1).to_bytes(8, "big", signed=True)


class Consumer:
    """Knows the blocks of one engine. It asks for batches that it missed."""

    def __init__(
        self, endpoint: str, replay_endpoint: str | None = None, topic: str = "", hwm: int = 0
    ) -> None:
        """`hwm`: number of batches that wait to be read; 0: no limit."""
        self.next = 0
        self._last_at = 0.0
        self.num_restarts = 0
        """Engines that followed the first one."""
        self.blocks: dict[tuple[int, int], tuple[int | None, tuple[int, ...]]] = {}
        """By hash and group: the parent's hash and the token ids."""
        self.extra_keys: list[Any] = []
        """The extra keys of the stored blocks, in the order of the events."""
        self.kinds: list[str] = []
        """The types of all events."""
        self.ranks: set[int] = set()
        self.num_replayed = 0
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.setsockopt(zmq.RCVHWM, hwm)
        self._events.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._events.connect(endpoint)
        self._topic = topic
        self._replay_endpoint = replay_endpoint

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)

    def catch_up(self, number: int) -> None:
        """Take the batches before a number."""
        end = time.monotonic() + PATIENCE
        while self.next < number:
            assert time.monotonic() < end, f"batch {self.next} does not come"
            if self._events.poll(200):
                self._receive()
            elif self._replay_endpoint is not None:
                self.replay()

    def receive_some(self) -> None:
        """Take what is there, and ask for what is missing."""
        while self._events.poll(100):
            self._receive()

    def receive_all(self) -> int:
        """Take what is there, gaps and all; returns the number of batches."""
        count = 0
        while self._events.poll(500):
            self._take(self._events.recv_multipart())
            count += 1
        return count

    def look_away(self) -> None:
        """Miss what comes until `look_again`."""
        self._events.setsockopt(zmq.UNSUBSCRIBE, self._topic.encode())

    def look_again(self) -> None:
        self._events.setsockopt(zmq.SUBSCRIBE, self._topic.encode())

    def replay(self) -> None:
        """Ask for all batches from the next one on."""
        assert self._replay_endpoint is not None
        with self._context.socket(zmq.DEALER) as asking:
            asking.setsockopt(zmq.LINGER, 0)
            asking.connect(self._replay_endpoint)
            asking.send_multipart((b"", self.next.to_bytes(8, "big")))
            while asking.poll(int(1000 * PATIENCE)):
                empty, number, batch = asking.recv_multipart()
                assert empty == b""
                if number == END:
                    assert batch == b""
                    return
                self.num_replayed += 1
                self._take((self._topic.encode(), number, batch))
        raise AssertionError("the replay does not end")

    def _receive(self) -> None:
        topic, number, batch = self._events.recv_multipart()
        live = int.from_bytes(number, "big")
        if live < self.next and msgspec.msgpack.decode(batch)[0] > self._last_at:
            self.next = 0  # a newer batch with a lower number: the engine is a new one
            self.num_restarts += 1
        if live > self.next and self._replay_endpoint is not None:
            self.replay()  # this batch, too
        if live >= self.next:
            self._take((topic, number, batch))

    def _take(self, parts: Sequence[bytes]) -> None:
        topic, number, batch = parts
        assert topic.decode() == self._topic
        self.next = int.from_bytes(number, "big") + 1
        self._last_at, events, rank = msgspec.msgpack.decode(batch)
        assert abs(self._last_at - time.time()) < 3600
        self.ranks.add(rank)
        for event in events:
            self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        self.kinds.append(event["type"])
        match event["type"]:
            case "AllBlocksCleared":
                self.blocks.clear()
            case "BlockRemoved":
                for one in event["block_hashes"]:
                    del self.blocks[one, event["group_idx"]]
            case "BlockStored":
                self._store(event)

    def _store(self, event: dict[str, Any]) -> None:
        assert event["medium"] == "GPU"
        assert (event["lora_id"], event["lora_name"]) == (None, None)
        hashes, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        assert len(tokens) == size * len(hashes)
        parent = event["parent_block_hash"]
        extra_keys = event.get("extra_keys") or [None] * len(hashes)
        self.extra_keys += [keys for keys in extra_keys if keys is not None]
        for i, one in enumerate(hashes):
            key = one, event["group_idx"]
            assert key not in self.blocks, "a block is stored twice"
            self.blocks[key] = parent, tuple(tokens[i * size : (i + 1) * size])
            parent = one
