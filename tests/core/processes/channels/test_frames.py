"""Messages over a stream."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.processes.channels.frames import LENGTH, MAX_BYTES, FrameReader, frame, receive


@given(messages=st.lists(st.binary(max_size=40)), size=st.integers(1, 50))
def test_messages_arrive_whole_however_the_stream_is_cut(messages: list[bytes], size: int) -> None:
    stream = b"".join(map(frame, messages))
    reader = FrameReader()
    found = []
    for start in range(0, len(stream), size):
        found += reader.feed(stream[start : start + size])
    assert found == messages


def test_an_absurd_length_is_refused_before_any_memory_is_taken() -> None:
    head = LENGTH.pack(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="too long"):
        FrameReader().feed(head)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(head)
        with pytest.raises(ValueError, match="too long"):
            receive(ours, 5)


def test_half_a_message_times_out_and_a_closed_stream_is_reported() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(frame(b"hello")[:-1])
        with pytest.raises(TimeoutError):
            receive(ours, 0.05)
        theirs.close()
        with pytest.raises(EOFError):
            receive(ours, 5)
