"""Tries grammars in a worker process, which a bad grammar may end."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from ...core.log import get_logger
from ...core.processes.channels.frames import receive, send
from ...core.processes.child import Child, spawn
from ...core.requests.grammar import Grammar
from .worker import TOO_LARGE, TOO_SLOW, Verdict, WorkerStart

log = get_logger("grammar")

WORKER_SECONDS = 60.0
"""Time limit for the start of the worker and one grammar. This is two seconds of work; a very busy
machine needs longer."""
_DEATHS = {
    "killed by SIGPROF": TOO_SLOW,
    "killed by SIGABRT": TOO_LARGE,
    "killed by SIGSEGV": "cannot be compiled",
}
"""Deaths of the worker that its grammar has caused, and what is wrong with such a grammar."""


class Trial:
    """A worker process that tries one grammar after the other. It is started by `prepare` or for
    the first grammar, and again after a grammar has killed it. One thread uses it."""

    def __init__(self, start: WorkerStart) -> None:
        self._start = start
        self._child: Child | None = None
        self._is_closed = False

    def prepare(self) -> None:
        """Start the worker unless it runs. What fails here is tried again for the next grammar."""
        self._living_child()

    def judge(self, grammar: Grammar) -> Verdict | None:
        """Try a grammar. None if the worker's end says nothing about it."""
        child = self._living_child()
        try:
            child.sockets[0].settimeout(WORKER_SECONDS)
            send(child.sockets[0], msgspec.msgpack.encode(grammar))
            reply = receive(child.sockets[0], WORKER_SECONDS)
        except (EOFError, OSError, TimeoutError):
            return self._bury(child)
        return msgspec.msgpack.decode(reply, type=Verdict)

    def close(self) -> None:
        """End the worker. Any thread may call this."""
        self._is_closed = True
        self.end_worker()

    def end_worker(self) -> None:
        """End the worker, if one runs. The next grammar starts another one."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _living_child(self) -> Child:
        if self._child is None or not self._child.is_alive:
            self.end_worker()
            child = self._child = spawn(f"{__package__}.worker:main")
            child.sockets[0].settimeout(WORKER_SECONDS)
            with suppress(OSError):  # `judge` finds out that it died
                send(child.sockets[0], msgspec.msgpack.encode(self._start))
            if self._is_closed:  # meanwhile
                child.kill()
            return child
        return self._child

    def _bury(self, child: Child) -> Verdict | None:
        end = child.describe_end()
        child.kill()
        log.warning("grammar_worker_ended", how=end, backend=self._start.factory)
        self._child = None
        return Verdict(error=_DEATHS[end]) if end in _DEATHS else None
