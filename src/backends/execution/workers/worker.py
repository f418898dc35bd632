"""The worker's side: loads a model, and computes the plans that the engine sends."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ....core.errors import CONTAINED, DeviceError, TokenmillError, describe
from ....core.host.calling.start_limit import StartLimit
from ....core.interfaces import Executor, Progress
from ....core.log import get_logger
from ....core.members import TAKE_MEDIA
from ....core.plan import StepResult
from ....core.processes.channels.frames import receive, send
from ....core.processes.channels.messages import NotStarted, Stage
from ....core.processes.channels.refusals import not_started
from ....core.processes.channels.shared_memory import Channel, SharedMemory, receive_memory
from ....core.processes.entry import import_by_name
from ....core.processes.logs import forward_logs
from ..identity import Identity
from .messages import (
    LOST,
    MEDIA,
    RAISED,
    RESULT,
    Loaded,
    Raised,
    StartRank,
    decode_item,
    decode_plan,
    decode_result,
    decode_start,
    encode,
)

BEAT_SECONDS = 0.1
"""Time between two signs of life. The engine treats a much longer silence as a hang."""
log = get_logger("worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankModel:
    """One rank's part of the model, loaded in this process."""

    executor: Executor
    identity: Identity
    settle: Callable[[StepResult], None] = lambda result: None
    """Takes in the last stage's results, if this rank computes an earlier stage of the model."""
    after_step: Callable[[], None] = lambda: None
    """Called after each step, for example to log failures of plugins."""

    def describe(self) -> Loaded:
        return Loaded(self.executor.info, self.identity)


LoadRank = Callable[[StartRank, Progress], RankModel]


def run_worker(control: socket.socket, logs: socket.socket) -> None:
    """The target of a worker process: load the model for the rank in the first message, and compute
    until the engine disconnects.

    Then ends the process, even if another thread still computes.
    """
    with suppress(EOFError, BrokenPipeError):
        memory = receive_memory(control)
        start = decode_start(receive(control))
        if start.exchange is not None:  # processes that this one starts do not get it
            os.set_inheritable(start.exchange, False)
        forward_logs(logs, start.log_level)
        with StartLimit(start.config.plugin_start_timeout):
            model = load_or_refuse(start, lambda *stage: send(control, encode(Stage(*stage))))
        if isinstance(model, NotStarted):
            send(control, encode(model))
        else:
            threading.Thread(target=_beat, args=(memory,), daemon=True).start()
            send(control, encode(model.describe()))
            _compute(Channel(control, memory.to_parent, memory.to_child), model)
    sys.stderr.flush()
    os._exit(0)


def load_or_refuse(start: StartRank, progress: Progress) -> RankModel | NotStarted:
    """Load the model with the function that `start` names, or say why it cannot be loaded."""
    try:
        load: LoadRank = import_by_name(start.load_rank)
        return load(start, progress)
    except CONTAINED as error:
        if not isinstance(error, TokenmillError):
            log.exception("worker_not_started", rank=start.rank)
        return not_started(error, f"worker {start.rank}")


def _beat(memory: SharedMemory) -> None:
    while True:
        memory.beat()
        time.sleep(BEAT_SECONDS)


def _compute(channel: Channel, model: RankModel) -> None:
    results: list[bytes] = []
    while True:
        kind, message = channel.receive()
        if kind == RESULT:
            results.append(message)
            continue
        if kind == MEDIA:
            take_item(model, message)
            continue
        channel.send(*answer_plan(model, message, results))
        results.clear()
        model.after_step()


def take_item(model: RankModel, message: bytes) -> None:
    """Keep the pixels of an item for the plans that follow."""
    TAKE_MEDIA.of(model.executor)([decode_item(message)])


def answer_plan(
    model: RankModel, plan: bytes, results: Sequence[bytes] = ()
) -> tuple[bytes, bytes]:
    """The kind and content of the answer to a plan. `results`: see RankAnswers.results."""
    for result in results:
        model.settle(decode_result(result))
    began = time.monotonic()
    try:
        found = model.executor.launch(decode_plan(plan)).result()
        times = found.rank_times or ((began, time.monotonic()),)
        return RESULT, encode(replace(found, rank_times=times))
    except DeviceError as error:
        return LOST, encode(Raised(str(error), ""))
    except CONTAINED as error:
        text = describe(error)
        return RAISED, encode(Raised(text, traceback.format_exc()))
