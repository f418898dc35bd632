"""The engine's side of one worker process."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait

from ....core.processes.channels.frames import receive, send
from ....core.processes.channels.messages import NotStarted, Stage
from ....core.processes.channels.refusals import raised_by
from ....core.processes.channels.shared_memory import Channel, share_memory
from ....core.processes.child import spawn
from ....core.processes.logs import LogReceiver
from ....core.processes.watching.crashes import is_crash, num_oom_kills
from .messages import Loaded, StartRank, decode_from_worker, encode

TARGET = f"{__package__}.worker:run_worker"


def wait_for_logs(links: Sequence[WorkerLink], seconds: float) -> list[WorkerLink]:
    """The workers from which log records arrive within this time."""
    with suppress(OSError, ValueError):  # another thread has closed the sockets
        readable = wait([link.logs for link in links], seconds)
        return [link for link in links if link.logs in readable]
    return []


class WorkerLink:
    """One worker: its process, its shared memory and its log."""

    def __init__(self, start: StartRank) -> None:
        self.rank = start.rank
        self.loaded: Loaded | None = None
        """The worker's answer once it has loaded its model."""
        self._num_oom_kills = num_oom_kills()
        kept = () if start.exchange is None else (start.exchange,)
        self._child = spawn(TARGET, (socket.SOCK_STREAM, socket.SOCK_DGRAM), kept)
        try:
            self.control, self.logs = self._child.sockets
            self.logs.setblocking(False)
            self._receiver = LogReceiver(self.logs, {"rank": start.rank} if start.size > 1 else {})
            self.memory = share_memory(self.control)
            self.channel = Channel(self.control, self.memory.to_child, self.memory.to_parent)
            send(self.control, encode(start))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def place(self) -> str:
        return ""

    @property
    def local_pid(self) -> int:
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        return self._child.is_alive

    @property
    def ended_from_outside(self) -> bool:
        """Whether it was killed by a signal that someone else sends. SIGKILL does not count if the
        system has killed a process for lack of memory since this one was started."""
        return not self.is_alive and not is_crash(self._child.end_signal, self._num_oom_kills)

    @property
    def num_beats(self) -> int:
        """Number of the process's signs of life."""
        return self.memory.num_beats

    def receive_start(self) -> Stage | None:
        """Receive the next message of a worker that loads its model. None: it has loaded the model.

        Raises the error of a worker that cannot load, and EOFError if the process ended.
        """
        message = decode_from_worker(receive(self.control))
        if isinstance(message, NotStarted):
            raise raised_by(message)
        if isinstance(message, Stage):
            return message
        self.loaded = message
        return None

    def receive_logs(self) -> None:
        """Handle the log records that have arrived."""
        with suppress(OSError):  # another thread has closed the socket
            self._receiver.receive()

    def describe_end(self) -> str:
        """Return how the process ended, for example "killed by SIGSEGV"."""
        return self._child.describe_end()

    def kill(self) -> None:
        """End the process at once. Does not wait. Safe to call twice, and from any thread."""
        self._child.send_kill()

    def close(self) -> None:
        """End the process, and close the sockets. Safe to call twice, and from any thread."""
        self._child.kill()
