"""Starts Python processes that never outlive this one, and ends them.

A child is a fresh interpreter (`python -m ...`): it shares no memory, lock or thread with its
parent. They talk over socketpairs, see `frames`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Self

ENTRY = f"{__package__}.entry"
STDERR = 2
END_SECONDS = 0.5
"""Time that a process whose socket is closed has to end, so that it is known how it ended."""
KILL_SECONDS = 5.0
"""Time that the kernel gets to end a killed process. Freeing a large memory takes a second."""


class Child:
    """A process that `spawn` started. `sockets` are this side's ends, in the order of the child's.

    The child dies with this process, however this process ends: it watches a pipe, the lifeline,
    whose other end only this process holds.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sockets: tuple[socket.socket, ...],
        lifeline: int,
    ) -> None:
        self.sockets = sockets
        self._process = process
        self._lifeline: int | None = lifeline

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the process. False if it still runs after `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process and all processes that it started, at once. Safe to call twice."""
        self.send_kill()
        self.wait(KILL_SECONDS)
        self.close()

    def send_kill(self) -> None:
        """As `kill`, but do not wait for the end, and keep the sockets open."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:  # afterwards the number may be another process's
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close this side's sockets, and the lifeline, which ends a child that still runs."""
        for sock in self.sockets:
            sock.close()
        lifeline, self._lifeline = self._lifeline, None  # two threads may close this child
        if lifeline is not None:
            os.close(lifeline)

    @property
    def end_signal(self) -> int | None:
        """The number of the signal that ended the process; None: it has ended itself, or runs."""
        status = self._process.poll()
        return -status if status is not None and status < 0 else None

    def describe_end(self) -> str:
        """Return how the process ended, for a log: "killed by SIGSEGV", "ended with status 3".

        Waits up to END_SECONDS for its end, because its sockets close earlier.
        """
        self.wait(END_SECONDS)
        status = self._process.poll()
        if status == 0 and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            return "ended; how is unknown, because this process ignores SIGCHLD"
        return "still runs" if status is None else describe_status(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


def describe_status(status: int) -> str:
    """A `returncode` of subprocess in words: "killed by SIGSEGV", "ended with status 3"."""
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


def spawn(
    target: str,
    kinds: Sequence[socket.SocketKind] = (socket.SOCK_STREAM,),
    kept: Sequence[int] = (),
    output: int = STDERR,
) -> Child:
    """Start a process that calls `target`, "package.module:function", with sockets of these kinds.

    `kept`: file descriptors that it gets as well, with the same numbers. `output`: the file
    descriptor of its stdout and stderr.

    It imports from the same places as this process, and ignores SIGINT and SIGTERM; its stdin is
    empty. It ends when the function returns.
    """
    pairs = [socket.socketpair(type=kind) for kind in kinds]
    theirs = [their_end for _, their_end in pairs]
    watched, lifeline = os.pipe()
    handles = [watched, *(sock.fileno() for sock in theirs)]
    try:
        process = subprocess.Popen(
            # -P: the current directory is no source of modules unless it is one here.
            [sys.executable, "-P", "-m", ENTRY, target, *map(str, handles)],
            pass_fds=[*handles, *kept],
            stdin=subprocess.DEVNULL,
            stdout=output,  # stdout belongs to the parent's user
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            process_group=0,
        )
    except BaseException:
        os.close(lifeline)
        for our_end, _ in pairs:
            our_end.close()
        raise
    finally:
        os.close(watched)
        for sock in theirs:
            sock.close()
    return Child(process, tuple(our_end for our_end, _ in pairs), lifeline)
