"""Messages between the engine and a worker process while the worker starts, in msgpack.

Afterwards plans and results follow through shared memory, each with its kind.
"""

from __future__ import annotations

import msgspec

from ....core.config import EngineConfig
from ....core.interfaces import ModelInfo
from ....core.plan import StepPlan, StepResult
from ....core.processes.channels.messages import Message, NotStarted, Stage
from ....core.processes.place import WHOLE_MACHINE, Place
from ....core.requests.media import MediaItem
from ..identity import Identity

PLAN, RESULT, RAISED, LOST, MEDIA = b"P", b"R", b"E", b"L", b"M"
"""Kinds of messages. To a worker: a plan, an item whose pixels it must keep, or the last stage's
result if the worker computes an earlier stage. From a worker: a result, the error of a step that
raised, or the error of a device that can compute nothing more."""


class Rendezvous(msgspec.Struct, array_like=True, frozen=True):
    """The store of torch through which the ranks find each other, in a file or on a port."""

    host: str
    """Address that all ranks reach. They send messages to each other on the interface that reaches
    it."""
    file: str = ""
    """Path of the store's file, if all ranks are on one machine and have one parent."""
    port: int = 0
    """Port of the store at `host`, if there is no file."""
    token: str = ""
    """Prefix of this group's keys, so that groups stay apart. The port has no authentication."""


class StartRank(Message, frozen=True):
    """The first message to a worker. The worker needs nothing else to load its model."""

    rank: int
    size: int
    """Number of ranks."""
    local_rank: int
    """Number of lower ranks on the same machine."""
    local_size: int
    """Number of ranks on the same machine."""
    rendezvous: Rendezvous | None
    """None with one rank."""
    exchange: int | None
    """The worker's descriptor of the empty file through which the ranks of its stage add up partial
    sums. None: there is no such file."""
    num_threads: int
    """Number of threads that compute in the worker."""
    load_rank: str
    """Name of the function that loads the model, see ExecutorSpec."""
    config: EngineConfig
    log_level: int
    place: Place = WHOLE_MACHINE
    """The part of the machine that the worker uses."""


class Loaded(Message, frozen=True):
    """The worker has loaded its model, and waits for plans."""

    info: ModelInfo
    identity: Identity


class Raised(Message, frozen=True):
    text: str
    traceback: str


FromWorker = Stage | Loaded | NotStarted

encode = msgspec.msgpack.Encoder().encode
decode_start = msgspec.msgpack.Decoder(StartRank).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_plan = msgspec.msgpack.Decoder(StepPlan).decode
decode_item = msgspec.msgpack.Decoder(MediaItem).decode
decode_result = msgspec.msgpack.Decoder(StepResult).decode
decode_raised = msgspec.msgpack.Decoder(Raised).decode
