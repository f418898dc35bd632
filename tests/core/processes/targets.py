"""What the children of these tests do."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time

from tokenmill.core.processes.child import spawn
from tokenmill.core.processes.frames import receive, send


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


def have_children(sock: socket.socket) -> None:
    """Start a process of each kind, tell their numbers, and wait for a signal."""
    kinds = (echo, hold_the_lock, stop_itself, have_a_child)
    children = [spawn(f"{__name__}:{kind.__name__}") for kind in kinds]
    answers = [receive(child.sockets[0]) if i else b"" for i, child in enumerate(children)]
    numbers = [str(child.pid) for child in children]
    send(sock, " ".join([*numbers, answers[-1].decode()]).encode())
    time.sleep(600)


def crash(sock: socket.socket) -> None:
    ctypes.string_at(0)


def leave(sock: socket.socket) -> None:
    os._exit(3)
