"""What the children of these tests do."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

import msgspec

from tokenmill.core.processes.channels.frames import receive, send
from tokenmill.core.processes.child import spawn
from tokenmill.core.processes.watching.board import receive_board
from tokenmill.core.processes.watching.last_steps import MAX_STEPS, LastSteps, PlannedStep


def echo(sock: socket.socket) -> None:
    """Send back each message, until the other side is gone."""
    try:
        while True:
            send(sock, receive(sock))
    except EOFError:
        return


def report(first: socket.socket, second: socket.socket) -> None:
    """Send which modules are loaded, and the import path on the second socket."""
    send(first, " ".join(sys.modules).encode())
    send(second, os.pathsep.join(sys.path).encode())
    echo(first)


def write_on_a_board(sock: socket.socket) -> None:
    """Write words on the board that the parent shares, and say so."""
    board = receive_board(sock)
    board.show_stage("loading the model")
    board.beat()
    board.work(True, 0.25)
    for end in (10, 20, 30):
        board.launch([(1, end), (2, 40)])
    board.finish()
    board.add(7)
    send(sock, b"written")
    echo(sock)


def planned_step(
    step_id: int, requests: tuple[str, ...] = ("a",), preempted: tuple[str, ...] = ()
) -> PlannedStep:
    """A step with these requests."""
    return PlannedStep(step_id, float(step_id), len(requests), 1, 0, 0, 1, 0, requests, preempted)


def launch(steps: LastSteps, step: PlannedStep) -> None:
    """Note that a step is launched."""
    *numbers, requests, preempted = msgspec.structs.astuple(step)
    steps.launch(requests, preempted, *numbers)


def show_steps(sock: socket.socket) -> None:
    """Show more steps than the parent's board has room for. The last one is not finished."""
    steps = receive_board(sock).last_steps
    assert steps is not None
    for step_id in range(6 + MAX_STEPS):
        launch(steps, planned_step(step_id))
        if step_id < 5 + MAX_STEPS:
            steps.finish(step_id, 0.1, 1.0, 2.0, 2.5, 0.2, False)
    send(sock, b"shown")
    echo(sock)


def hold_the_lock(sock: socket.socket) -> None:
    """Hang in native code that keeps Python's lock: no thread of Python runs any more."""
    send(sock, b"hanging")
    ctypes.PyDLL(None).pause()


def stop_itself(sock: socket.socket) -> None:
    send(sock, b"stopping")
    os.kill(os.getpid(), signal.SIGSTOP)
    echo(sock)


def have_a_child(sock: socket.socket) -> None:
    """Start a process and tell its number."""
    with spawn(f"{__name__}:echo") as child:
        send(sock, str(child.pid).encode())
        echo(sock)


def kill_a_child(sock: socket.socket) -> None:
    """Kill a process, and send how it ended."""
    with spawn(f"{__name__}:echo") as child:
        os.kill(child.pid, signal.SIGKILL)
        send(sock, child.describe_end().encode())


def run_a_program(sock: socket.socket) -> None:
    """Run a program that knows nothing of its parent, and tell its number."""
    with subprocess.Popen(["sleep", "600"]) as program:
        send(sock, str(program.pid).encode())


def have_children(sock: socket.socket) -> None:
    """Start a process of each kind, tell their numbers, and wait for a signal."""
    kinds = (echo, hold_the_lock, stop_itself, run_a_program, have_a_child)
    children = [spawn(f"{__name__}:{kind.__name__}") for kind in kinds]
    answers = [receive(child.sockets[0]) if i else b"" for i, child in enumerate(children)]
    numbers = [str(child.pid).encode() for child in children]
    send(sock, b" ".join([*numbers, *answers[-2:]]))
    time.sleep(600)


def crash(sock: socket.socket) -> None:
    ctypes.string_at(0)


def leave(sock: socket.socket) -> None:
    os._exit(3)
