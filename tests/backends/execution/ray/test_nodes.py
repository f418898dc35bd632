"""Which node of a Ray cluster is lost."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from tokenmill.backends.execution.ray.nodes import Address, describe_silence, find_lost_node

NOWHERE = ("192.0.2.7", 1)
"""An address for documentation, where nothing answers."""


def worker(rank: int, node: str) -> Any:
    return SimpleNamespace(rank=rank, node=SimpleNamespace(node_id=node, address=f"at {node}"))


@pytest.fixture
def open_port() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def closed_port() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: Address = server.getsockname()
    return found


def test_a_node_on_which_ray_has_ended_is_named_with_its_ranks(open_port: Address) -> None:
    links = [worker(0, "a"), worker(1, "b"), worker(2, "b")]
    assert find_lost_node(links, {"a": open_port, "b": open_port}, open_port) is None
    found = find_lost_node(links, {"a": open_port, "b": closed_port()}, closed_port())
    assert found == (links[1], "node at b died (rank 1, 2)")


def test_a_machine_that_cannot_be_reached_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*args: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", time_out)
    assert describe_silence(NOWHERE) == "does not answer"
