"""A log that nobody reads does not stop the program that writes it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from io import StringIO

import pytest

from tokenmill.api.http.logs.log_output import LogOutput
from tokenmill.core.log import EventFormatter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(fd)


def make_logger(fd: int) -> logging.Logger:
    logger = logging.Logger("tokenmill.test")
    handler = LogOutput(fd)
    handler.setFormatter(EventFormatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger


def read_all(fd: int) -> str:
    os.set_blocking(fd, False)
    text = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, 1 << 20):
            text += piece
    return text.decode()


@pytest.mark.parametrize(
    ("length", "number"), [(10, 10_000), (100_000, 50)], ids=["short", "longer than the pipe"]
)
def test_lines_for_which_a_pipe_has_no_room_are_dropped_and_counted(
    pipe: tuple[int, int], length: int, number: int
) -> None:
    reader, writer = pipe
    logger = make_logger(writer)
    for index in range(number):
        logger.warning("%d %s", index, "a" * length)
    lines = read_all(reader).splitlines()
    assert lines[0].startswith("WARNING 0 a")
    logger.warning("read again")
    *_, dropped, last = read_all(reader).splitlines()
    assert last == "WARNING read again"
    num_whole = sum(len(line) > length for line in lines)
    assert dropped.startswith(f"WARNING log_lines_dropped number={number - num_whole} ")
    assert 0 <= num_whole < number


def test_a_reader_that_has_left_is_no_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    make_logger(writer).warning("nobody hears it")


def test_lines_go_through_what_owns_standard_error(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a progress display does until it stops."""
    reader, writer = pipe
    logger = make_logger(writer)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", owner := StringIO())
        logger.warning("above the bar")
    logger.warning("after it")
    assert owner.getvalue() == "WARNING above the bar\n"
    assert read_all(reader) == "WARNING after it\n"
