"""Messages through shared memory: any length, any number, and the end of the other side."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tokenmill.core.processes.channels.shared_memory import (
    RING_BYTES,
    Channel,
    receive_memory,
    share_memory,
)

Pair = tuple[Channel, Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends in one process, and the second one's socket."""
    first, second = socket.socketpair()
    with first, second:
        ours = share_memory(first)
        theirs = receive_memory(second)
        yield (
            Channel(first, ours.to_child, ours.to_parent),
            Channel(second, theirs.to_parent, theirs.to_child),
            second,
        )


def test_messages_arrive_in_order_and_whole_whatever_their_length(pair: Pair) -> None:
    parent, child, _ = pair
    rng = random.Random(1)
    lengths = [0, 1, RING_BYTES, RING_BYTES + 1, 3 * RING_BYTES]
    lengths += [rng.choice([10, 1000, 100_000]) for _ in range(200)]
    rng.shuffle(lengths)
    sent = [(bytes([65 + i % 26]), rng.randbytes(length)) for i, length in enumerate(lengths)]
    with ThreadPoolExecutor(1) as thread:
        receiving = thread.submit(lambda: [child.receive() for _ in sent])
        for kind, message in sent:
            parent.send(kind, message)
        assert receiving.result(60) == sent
        answering = thread.submit(lambda: [child.send(*one) for one in sent])
        assert [parent.receive() for _ in sent] == sent
        answering.result(60)


def test_room_is_what_can_be_sent_without_a_reader(pair: Pair) -> None:
    parent, child, _ = pair
    num_bytes = RING_BYTES // 4
    while parent.has_room(num_bytes):
        parent.send(b"a", bytes(num_bytes))
    child.receive()
    assert parent.has_room(num_bytes)


def test_the_other_side_s_end_is_seen_by_reader_and_waiting_writer(pair: Pair) -> None:
    parent, _, theirs = pair
    threading.Timer(0.05, theirs.close).start()
    with pytest.raises(EOFError):
        parent.send(b"a", bytes(4 * RING_BYTES))
    with pytest.raises(EOFError):
        parent.receive()


def test_signs_of_life_are_counted_on_the_other_side() -> None:
    first, second = socket.socketpair()
    with first, second:
        ours, theirs = share_memory(first), receive_memory(second)
        assert ours.num_beats == 0
        theirs.beat()
        theirs.beat()
        assert ours.num_beats == 2
