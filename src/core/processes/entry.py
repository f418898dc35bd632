"""The first code of a child process: `python -m tokenmill.core.processes.entry TARGET FD FD...`.

The first file descriptor is the lifeline, the others are the child's sockets.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

THREAD = "tokenmill-lifeline"


def main(arguments: Sequence[str]) -> None:
    """Tie this process to its parent's life, and call the target with the sockets."""
    target, lifeline, *sockets = arguments
    die_with_parent(int(lifeline))
    _leave_signals_to_parent()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # this process may end without writing the rest
    import_by_name(target)(*(_own_socket(int(handle)) for handle in sockets))


def import_by_name(name: str) -> Any:
    """The object that "package.module:name" names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _own_socket(handle: int) -> socket.socket:
    """A socket that the parent made. Processes that this one starts do not get it: it would stay
    open after this process has ended."""
    os.set_inheritable(handle, False)
    return socket.socket(fileno=handle)


def die_with_parent(lifeline: int) -> None:
    """Kill this process, and programs that it runs, as soon as the pipe `lifeline` has no writer.

    `spawn` has made this process the leader of a group. A compiler that it runs is in this group,
    too. On Linux the kernel kills the group, so it works even if this process is stopped, or hangs
    in native code and holds Python's lock. Elsewhere, and if the parent has died already, a thread
    does it.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())  # negative: the group
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
    threading.Thread(
        target=_watch, args=(lifeline,), name="tokenmill-lifeline", daemon=True
    ).start()


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)  # no data ever comes: returns when the writing end closes
    os.killpg(os.getpid(), signal.SIGKILL)


def _leave_signals_to_parent() -> None:
    """A service manager signals every process of a service. Only the parent may react.

    Handlers, not SIG_IGN: a program that this process starts gets the default again.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how a worker ended


if __name__ == "__main__":
    main(sys.argv[1:])
