"""Children: their messages, their end, and the end of their parent."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.core.processes.channels.frames import receive, send
from tokenmill.core.processes.child import Child, spawn

from . import targets

PATIENCE = 30.0


def start(target: Callable[..., None], num_sockets: int = 1) -> Child:
    return spawn(f"{targets.__name__}:{target.__name__}", [socket.SOCK_STREAM] * num_sockets)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + PATIENCE
    while alive := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < end, f"still there: {alive}"
        time.sleep(0.01)


def test_a_child_answers_on_its_socket_and_ends_when_its_parent_closes_it() -> None:
    child = start(targets.echo)
    for message in (b"", b"hello", bytes(300_000)):
        send(child.sockets[0], message)
        assert receive(child.sockets[0], PATIENCE) == message
    child.sockets[0].close()
    assert child.wait(PATIENCE)
    assert child.describe_end() == "ended with status 0"
    child.close()


def test_a_child_imports_no_torch_and_from_the_same_places() -> None:
    with start(targets.report, num_sockets=2) as child:
        modules = receive(child.sockets[0], PATIENCE).decode().split()
        path = receive(child.sockets[1], PATIENCE).decode().split(os.pathsep)
    assert targets.__name__ in modules
    assert not {"torch", "numpy", "starlette"} & set(modules)
    assert [folder for folder in sys.path if folder and folder not in path] == []


@pytest.mark.parametrize(
    ("target", "end"),
    [(targets.crash, "killed by SIGSEGV"), (targets.leave, "ended with status 3")],
)
def test_the_end_of_a_child_is_seen_at_once_and_described(
    target: Callable[..., None], end: str
) -> None:
    with start(target) as child:
        with pytest.raises(EOFError):
            receive(child.sockets[0], PATIENCE)
        assert child.wait(PATIENCE)
        assert child.describe_end() == end


def test_a_child_whose_end_the_system_does_not_report_is_not_called_a_success() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with start(targets.crash) as child:
            assert child.wait(PATIENCE)
            assert child.describe_end() == (
                "ended; how is unknown, because this process ignores SIGCHLD"
            )
        with start(targets.kill_a_child) as child:
            assert receive(child.sockets[0], PATIENCE) == b"killed by SIGKILL"
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_child_ignores_the_signals_of_a_service_manager() -> None:
    with start(targets.echo) as child:
        send(child.sockets[0], b"ready")
        assert receive(child.sockets[0], PATIENCE) == b"ready"
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(child.pid, number)
        send(child.sockets[0], b"still")
        assert receive(child.sockets[0], PATIENCE) == b"still"


@pytest.mark.parametrize("target", [targets.hold_the_lock, targets.stop_itself])
def test_a_child_that_hangs_is_killed(target: Callable[..., None]) -> None:
    with start(target) as child:
        receive(child.sockets[0], PATIENCE)
        with pytest.raises(TimeoutError):
            receive(child.sockets[0], 0.1)
    assert not child.is_alive
    assert child.describe_end() == "killed by SIGKILL"


def test_killing_a_child_ends_its_own_children() -> None:
    with start(targets.have_a_child) as child:
        grandchild = int(receive(child.sockets[0], PATIENCE))
        assert is_running(grandchild)
    wait_until_gone([child.pid, grandchild])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_child_outlives_a_killed_parent_whatever_it_does() -> None:
    with start(targets.have_children) as parent:
        pids = [int(pid) for pid in receive(parent.sockets[0], PATIENCE).split()]
        assert len(pids) == 7
        assert all(map(is_running, pids))
        os.kill(parent.pid, signal.SIGKILL)
        wait_until_gone(pids)
