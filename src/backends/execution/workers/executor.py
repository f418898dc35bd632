"""The executor whose steps are computed by worker processes."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import wait
from typing import IO

import msgspec

from ....core.errors import DeviceError
from ....core.interfaces import ModelInfo, Progress
from ....core.plan import StepPlan, StepResult
from ....core.processes.channels.shared_memory import unnamed_file
from ....core.processes.logs import current_level
from ....core.processes.place import WHOLE_MACHINE
from ....core.processes.watching.stalls import Stall
from ....core.requests.media import MediaItem
from ...machine.device import choose_device, name_gpus
from ...machine.places import place_ranks
from ...machine.torch_threads import count_torch_threads
from ..base import ExecutorSpec
from .answers import LAG_SECONDS, Answer, RankAnswers, agree, describe_failures
from .group import open_private_rendezvous
from .link import WorkerLink, wait_for_logs
from .messages import MEDIA, PLAN, RESULT, StartRank, encode
from .watch import CHECK_SECONDS, Watch


class MultiProcess:
    """Computes in worker processes, one per rank.

    A worker that crashes or hangs does not end the engine's process. It stops the engine, as a lost
    device does.
    """

    def __init__(
        self, links: Sequence[WorkerLink], watch: Watch, info: ModelInfo, store: IO[bytes]
    ) -> None:
        """`store`: the file through which ranks find each other. It is closed at the end."""
        self.info = info
        self._links, self._watch, self._store = links, watch, store
        self._answers = RankAnswers(links, watch, info.num_stages)
        self._unsent: deque[_Step] = deque()  # open steps only, so it is short
        self._media: list[MediaItem] = []
        """Items that the first stage gets before the next plan."""
        self._lock = threading.Lock()

    @classmethod
    def start(cls, spec: ExecutorSpec) -> MultiProcess:
        """Start the workers, and wait until they have loaded the model.

        Raises ConfigError if they cannot load it, or if they differ from the engine.
        """
        size, per_stage = spec.config.num_ranks, spec.config.tensor_parallel_size
        have_gpus = size > 1 and choose_device(spec.config.device).type == "cuda"
        places = place_ranks(name_gpus()[:size]) if have_gpus else (WHOLE_MACHINE,) * size
        first = StartRank(
            rank=0,
            size=size,
            local_rank=0,
            local_size=size,
            rendezvous=None,
            exchange=None,
            num_threads=max(1, count_torch_threads() // size),
            load_rank=spec.load_rank,
            config=spec.config,
            log_level=current_level(),
        )
        with ExitStack() as failing, ExitStack() as exchanges:
            store, rendezvous = open_private_rendezvous()
            failing.enter_context(store)
            if size > 1:
                first = msgspec.structs.replace(first, rendezvous=rendezvous)
            links: list[WorkerLink] = []
            for rank in range(size):
                if per_stage > 1 and rank % per_stage == 0 and not have_gpus:  # one for each stage
                    exchange = exchanges.enter_context(unnamed_file()).fileno()
                    first = msgspec.structs.replace(first, exchange=exchange)
                start = msgspec.structs.replace(
                    first, rank=rank, local_rank=rank, place=places[rank]
                )
                links.append(WorkerLink(start))
                failing.callback(links[-1].close)
            watch = Watch(links, partial(wait_for_logs, links))
            failing.callback(watch.close)
            _wait_until_loaded(links, watch, spec.progress)
            loaded = [link.loaded for link in links if link.loaded]
            info = agree(spec.identify(), loaded, size // per_stage)
            failing.pop_all()
        watch.expect_beats()
        return cls(links, watch, info, store)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers, by rank."""
        return tuple(link.pid for link in self._links)

    def launch(self, plan: StepPlan) -> _Step:
        """Send a plan to all workers, or send it later if their memory has no room for it now."""
        step = _Step(encode(plan), self._finish, self._media)
        self._media = []
        with self._lock:
            if self._unsent or not self._have_room(step):
                self._unsent.append(step)
                return step
        self._send(step)
        return step

    def take_media(self, items: Sequence[MediaItem]) -> None:
        """Send items to the ranks of the first stage, before the next plan; see TakesMedia."""
        self._media += items

    def health(self) -> str | None:
        """The reason why the workers can compute nothing more, or None."""
        return self._watch.failure

    def close(self) -> None:
        self._watch.close()
        self._store.close()

    def _have_room(self, step: _Step) -> bool:
        if step.media:  # copying pixels would stop the engine's thread
            return False
        num_bytes = len(step.message) + sum(map(len, self._answers.results))
        return all(link.channel.has_room(num_bytes) for link in self._links)

    def _send(self, step: _Step) -> None:
        results = self._answers.take_results()
        try:
            for link in self._links[: self._answers.num_early]:
                for result in results:
                    link.channel.send(RESULT, result)
            for item in map(encode, step.media):
                for link in self._links[: len(self._links) // self.info.num_stages]:
                    link.channel.send(MEDIA, item)
            for link in self._links:
                link.channel.send(PLAN, step.message)
        except EOFError:
            return  # `_receive` raises the reason

    def _finish(self, step: _Step) -> StepResult:
        """Wait for the answers to a step. Answers to earlier steps have been received."""
        if self._unsent and self._unsent[0] is step:
            self._send(step)  # not under the lock: it may wait for the worker
            with self._lock:
                self._unsent.popleft()
        return self._answers.finish(list(self._receive().values()))

    def _receive(self) -> dict[WorkerLink, Answer]:
        """The answers of all workers, in the order of their ranks."""
        found = dict.fromkeys(self._links, (b"", b""))
        waiting = {link.control: link for link in self._links}
        while waiting:
            failures = describe_failures((link.rank for link in found), found.values())
            for sock in self._wait(waiting, failures):
                link = waiting.pop(sock)
                found[link] = self._receive_from(link)
        return found

    def _wait(
        self, waiting: Mapping[socket.socket, WorkerLink], failures: str | None
    ) -> Sequence[socket.socket]:
        """The sockets of workers that have answered.

        If a rank fails, other ranks may wait forever for its partial sums. So after a failure, the
        other answers must come within LAG_SECONDS, without the time in which one waits for a CPU.
        """
        if len(self._links) == 1:
            return list(waiting)
        link = next(iter(waiting.values()))
        lag = Stall(link.local_pid)
        try:
            readable = wait(list(waiting), None if failures is None else 0)
            while not readable and lag.check(time.monotonic(), failures) < LAG_SECONDS:
                readable = wait(list(waiting), CHECK_SECONDS)
        except (OSError, ValueError):  # the watch has closed the sockets
            return list(waiting)
        if not readable:
            raise self._watch.fail(link, f"waits for {failures}")
        return [sock for sock in waiting if sock in readable]

    def _receive_from(self, link: WorkerLink) -> Answer:
        try:
            return link.channel.receive()
        except EOFError:
            raise self._watch.fail(link, link.describe_end()) from None


class _Step:
    __slots__ = ("_finish", "media", "message")

    def __init__(
        self,
        message: bytes,
        finish: Callable[[_Step], StepResult],
        media: Sequence[MediaItem] = (),
    ) -> None:
        """`media`: items to send before the plan."""
        self.message = message
        self.media = media
        self._finish = finish

    def result(self) -> StepResult:
        """Wait for the step. Raises WorkerStepError, or DeviceError if a worker is lost."""
        return self._finish(self)


def _wait_until_loaded(links: Sequence[WorkerLink], watch: Watch, progress: Progress) -> None:
    while loading := {link.control: link for link in links if link.loaded is None}:
        link = next(iter(loading.values()))
        try:
            readable = wait(list(loading))
            for link in (link for sock, link in loading.items() if sock in readable):
                stage = link.receive_start()
                if stage is not None and link.rank == 0:  # the others load at the same time
                    progress(stage.name, stage.fraction)
        except (EOFError, OSError, ValueError) as error:  # ValueError: the watch closed the socket
            reason = watch.fail(link, link.describe_end())
            raise DeviceError(f"{reason} while it loaded the model") from error
