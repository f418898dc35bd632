"""The worker's side: one rank, as a Ray actor."""

from __future__ import annotations

import os
import queue
from contextlib import suppress
from typing import IO

import msgspec
import ray

from ....core.processes.channels.messages import Stage
from ....core.processes.channels.shared_memory import unnamed_file
from ....core.processes.logs import forward_records
from ...machine.threads import count_usable_cores
from ..workers.group import open_rendezvous
from ..workers.worker import RankModel, answer_plan, load_or_refuse, take_item
from .messages import Logged, Node, decode_start, encode

BEAT_SECONDS = 0.25
"""Maximum time until `watch` returns. The engine treats a much longer silence as a hang."""
MAX_NEWS = 1024
"""Maximum number of messages that the engine has not fetched yet. Further ones are dropped."""
WATCH = "watch"
"""A group of calls that has its own thread, so they are answered while the worker computes."""


class Worker:
    """Loads one rank's part of the model, and computes the plans that the engine sends.

    Plans, results and errors of steps are msgpack bytes. Only an error of the worker itself raises.
    """

    def __init__(self) -> None:
        self._news: queue.Queue[bytes] = queue.Queue(MAX_NEWS)
        self._store: object = None
        self._exchange: IO[bytes] | None = None
        self._model: RankModel | None = None

    def describe(self) -> bytes:
        return encode(
            Node(
                ray.get_runtime_context().get_node_id(),
                ray.util.get_node_ip_address(),
                count_usable_cores(),
                os.getpid(),
            )
        )

    def open_rendezvous(self, host: str) -> bytes:
        """Open the store through which the ranks find each other, on an address of this node."""
        self._store, rendezvous = open_rendezvous(host)
        return encode(rendezvous)

    def open_exchange(self) -> str:
        """Open the file through which the ranks of a stage add up partial sums: its path.

        It has no name, but processes of the same user can open it where /proc shows it.
        """
        self._exchange = unnamed_file()
        return f"/proc/{os.getpid()}/fd/{self._exchange.fileno()}"

    def load(self, message: bytes, folder: str, exchange: str | None) -> bytes:
        """Load the model of the message. `folder`: relative paths start there. `exchange`: what
        `open_exchange` of the stage's first rank has returned; None: there is no such file."""
        with suppress(OSError):  # another machine may not have it, and not need it
            os.chdir(folder)
        start = decode_start(message)
        if exchange is not None:
            with suppress(OSError):  # this system has no /proc
                handle = os.open(exchange, os.O_RDWR)
                start = msgspec.structs.replace(start, exchange=handle)
        forward_records(lambda record: self._tell(encode(Logged(record))), start.log_level)
        loaded = load_or_refuse(start, lambda *stage: self._tell(encode(Stage(*stage))))
        if isinstance(loaded, RankModel):
            self._model = loaded
            return encode(loaded.describe())
        return encode(loaded)

    def take_item(self, message: bytes) -> None:
        """Keep the pixels of an item. Calls are made in their order, so a plan that needs it comes
        later."""
        assert self._model is not None, "the engine sends items after `load`"
        take_item(self._model, message)

    def step(self, plan: bytes, *results: bytes) -> tuple[bytes, bytes]:
        """Kind and content of the answer to a plan. `results`: see RankAnswers.results."""
        assert self._model is not None, "the engine sends plans after `load`"
        answer = answer_plan(self._model, plan, results)
        self._model.after_step()
        return answer

    def watch(self) -> list[bytes]:
        """Stages and log records since the last call. An empty list is a sign of life.

        Call it in the concurrency group WATCH.
        """
        found = []
        with suppress(queue.Empty):
            found.append(self._news.get(timeout=BEAT_SECONDS))
            while len(found) < MAX_NEWS:
                found.append(self._news.get_nowait())
        return found

    def _tell(self, message: bytes) -> None:
        with suppress(queue.Full):
            self._news.put_nowait(message)
