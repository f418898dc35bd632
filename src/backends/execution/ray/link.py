"""The engine's side of one Ray actor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import ray
from ray.exceptions import RayTaskError

from ....core.processes.channels.messages import Stage
from ....core.processes.logs import handle_record
from .actor import WATCH
from .messages import Logged, Node, decode_news

CHECK_SECONDS = 0.1
"""Time between two looks at the watch while the engine waits for actors."""
MAX_STAGES = 64
"""Maximum number of stages of loading that are kept until they are shown."""


class ActorLink:
    """One worker: its actor, and its news."""

    def __init__(self, rank: int, actor: Any, node: Node) -> None:
        self.rank, self.actor, self.node = rank, actor, node
        self.stages: deque[Stage] = deque(maxlen=MAX_STAGES)
        """Stages of loading, until they are shown."""
        self.num_beats = 0
        self.news = self._ask()
        """The next answer of the actor's `watch`."""
        self._end: str | None = None
        self._has_raised = False

    def _ask(self) -> Future[list[bytes]]:
        found: Future[list[bytes]] = (
            self.actor.watch.options(concurrency_group=WATCH).remote().future()
        )
        return found

    @property
    def pid(self) -> int:
        return self.node.pid

    @property
    def place(self) -> str:
        return f" on {self.node.address}"

    @property
    def local_pid(self) -> None:
        """None: the actor may be on another machine."""
        return None

    @property
    def is_alive(self) -> bool:
        return self._end is None

    @property
    def ended_from_outside(self) -> bool:
        """True unless the worker's code raised: Ray does not say which signal ended an actor."""
        return not self.is_alive and not self._has_raised

    def receive_logs(self) -> None:
        """Handle the answer of `watch` if it has arrived, and ask again."""
        if self._end is not None or not self.news.done():
            return
        if (error := self.news.exception()) is not None:
            self.end(error)
            return
        self.num_beats += 1
        messages, self.news = self.news.result(), self._ask()
        for message in map(decode_news, messages):
            if isinstance(message, Logged):
                handle_record(message.record, {"rank": self.rank, "address": self.node.address})
            else:
                self.stages.append(message)

    def end(self, error: BaseException) -> str:
        """Note that the actor has ended, and return how."""
        self._has_raised = self._has_raised or isinstance(error, RayTaskError)
        self._end = self._end or describe_error(error)
        return self._end

    def describe_end(self) -> str:
        return self._end or "still runs"

    def kill(self) -> None:
        """End the actor at once. Does not wait. Safe to call twice, and from any thread."""
        if ray.is_initialized():
            ray.kill(self.actor, no_restart=True)

    def close(self) -> None:
        """See Watched. Ray frees what belongs to the actor."""


def wait_for_logs(links: Sequence[ActorLink], seconds: float) -> list[ActorLink]:
    """The workers from which news arrive within this time."""
    waiting = {link.news: link for link in links if link.is_alive}
    if not waiting:
        time.sleep(seconds)
        return []
    try:
        _check_connected()
    except RuntimeError as error:
        for link in waiting.values():
            link.end(error)
        return []
    ready, _ = wait(waiting, seconds, FIRST_COMPLETED)
    return [waiting[one] for one in ready]


def _check_connected() -> None:
    """Raise if the program has disconnected from Ray. A call of Ray could connect it again."""
    if not ray.is_initialized():
        raise RuntimeError("this program has disconnected from Ray")


def describe_error(error: BaseException) -> str:
    """Return how an actor ended, in one line: "ended: ..."."""
    text = str(error)
    _, _, detail = text.partition("Worker exit detail: ")
    reason = detail.partition(". Some common causes")[0] or text.partition("\n")[0]
    return f"ended: {reason}"
