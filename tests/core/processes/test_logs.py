"""Log records of a child arrive whole, on systems with short datagrams too."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from tokenmill.core.processes.logs import Forwarder, LogReceiver, send_parts

MOST_BYTES = 2048
"""Maximum of a datagram on macOS."""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """What a child logs with: nothing else handles its records."""
    logger = logging.Logger("tokenmill.engine")
    yield logger
    for handler in logger.handlers:
        handler.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(type=socket.SOCK_DGRAM)
    with near, far:
        near.setblocking(False)
        yield near, far


def log_long(logger: logging.Logger, sock: socket.socket) -> None:
    logger.addHandler(Forwarder(partial(send_parts, sock)))
    try:
        raise RuntimeError("why " * 1500)
    except RuntimeError:
        logger.exception("failed " + "a" * 3000, extra={"model": "m" * 2500})


def test_a_long_record_arrives_whole(
    logger: logging.Logger,
    pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    near, far = pair
    log_long(logger, far)
    with caplog.at_level(logging.INFO, "tokenmill.engine"):
        LogReceiver(near).receive()
    (record,) = caplog.records
    assert record.message == "failed " + "a" * 3000
    assert vars(record)["model"] == "m" * 2500
    assert record.exc_text is not None and record.exc_text.endswith("why " * 1500)


def test_datagrams_are_short_and_a_record_without_its_beginning_is_left_out(
    logger: logging.Logger,
    pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    near, far = pair
    log_long(logger, far)
    assert len(near.recv(1 << 20)) <= MOST_BYTES
    logger.info("short")
    with caplog.at_level(logging.INFO, "tokenmill.engine"):
        LogReceiver(near).receive()
    assert caplog.messages == ["short"]


def test_a_list_stays_a_list(
    logger: logging.Logger,
    pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    near, far = pair
    logger.addHandler(Forwarder(partial(send_parts, far)))
    logger.info("chosen", extra={"passed_over": ["a: no GPU"], "sizes": (1, None), "odd": [set()]})
    with caplog.at_level(logging.INFO, "tokenmill.engine"):
        LogReceiver(near).receive()
    found = vars(caplog.records[0])
    assert (found["passed_over"], found["sizes"], found["odd"]) == (
        ["a: no GPU"],
        [1, None],
        ["set()"],
    )


def test_a_receiver_adds_the_fields_of_its_sender(
    logger: logging.Logger,
    pair: tuple[socket.socket, socket.socket],
    caplog: pytest.LogCaptureFixture,
) -> None:
    near, far = pair
    logger.addHandler(Forwarder(partial(send_parts, far)))
    logger.info("chosen", extra={"model": "m"})
    with caplog.at_level(logging.INFO, "tokenmill.engine"):
        LogReceiver(near, {"rank": 1}).receive()
    found = vars(caplog.records[0])
    assert (found["model"], found["rank"]) == ("m", 1)
