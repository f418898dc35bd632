"""The client's side of one engine process, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..config import EngineConfig
from ..contract.client import Load
from ..errors import EngineStoppedError, OverloadedError, TokenmillError
from ..interfaces import Progress
from ..log import get_logger
from ..outputs import RequestOutput
from ..processes.child import Child, spawn
from ..processes.frames import FrameReader, frame
from ..processes.place import Place
from .errors import raised_by
from .logs import ROOT, LogReceiver
from .messages import (
    Accepted,
    Ask,
    End,
    Message,
    NotStarted,
    Outputs,
    Ready,
    Refused,
    Report,
    Stage,
    Start,
    Stop,
    Submit,
    decode_from_engine,
    encode,
)
from .stream import RemoteStream

UNREAD_BYTES = 8 << 20
"""New requests are refused if the engine has not read this many bytes: it hangs, or is too busy."""
IDLE = Load(
    num_running=0,
    num_waiting=0,
    kv_cache_usage=0.0,
    stalled_for=0.0,
    is_alive=True,
    is_draining=False,
)
"""The load of an engine that has not reported any."""
LOST = "the engine failed; it is started again"
log = get_logger("engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """How to start an engine process, and what to call about its requests."""

    target: str
    """Function of the child process, see `processes.child.spawn`."""
    config: EngineConfig
    place: Place
    on_end: Callable[[RemoteStream], None]
    """Called for each request that the engine has ended."""
    on_loss: Callable[[], None]
    """Called when the engine is lost, before it is started again."""
    on_lost_request: Callable[[RemoteStream, TokenmillError], None]
    """Called for each accepted request of an engine that stops or is lost, with its error."""


class EngineLink(asyncio.Protocol):
    """One engine process with its open requests."""

    def __init__(self, setup: EngineSetup, progress: Progress) -> None:
        self.load = IDLE
        """The last load that the engine reported."""
        self.num_received = 0
        """Number of times that data came from the engine. Each one is a sign of life."""
        self.blame = ""
        """Why this side killed the process."""
        self.open_requests: dict[int, RemoteStream] = {}
        self.at_end: tuple[RemoteStream, ...] = ()
        """The requests that were open when the engine was lost, or when it lost its device."""
        self._stopped: list[RemoteStream] = []  # requests of an engine that lost its device
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        """Done when the process has ended, with the reason."""
        self._setup = setup
        self._progress = progress
        self._reader = FrameReader()
        self._numbers = itertools.count()
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._ending: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._transport: asyncio.Transport | None = None
        self._is_started = False
        self._stage = "starting"
        """What an engine that is not ready does."""

    # Life

    async def open(self) -> Ready:
        """Start the process, and wait until its engine is ready.

        Raises what the engine's start raises, and EngineStoppedError if the process ends, with how
        and at which stage.
        """
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)  # messages, and log records
        self._child = spawn(self._setup.target, kinds)
        control, self._logs = self._child.sockets
        control.setblocking(False)
        self._logs.setblocking(False)
        loop = asyncio.get_running_loop()
        self._receiver = LogReceiver(self._logs)
        loop.add_reader(self._logs, self._receiver.receive)
        await loop.create_connection(lambda: self, sock=control)
        level = logging.getLogger(ROOT).getEffectiveLevel()
        self._send(Start(self._setup.config, level, self._setup.place))
        return await self.ready

    async def close(self, patience: float) -> None:
        """Let the engine close within `patience` seconds, and end the process in any case."""
        if self._child is None:
            return
        if patience:
            self._send(Stop())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.lost), patience)
        self.kill("")
        await self.lost

    def kill(self, blame: str) -> None:
        """End the process at once. `blame` says why."""
        self.blame = self.blame or blame
        if self._transport is None:
            self.connection_lost(None)
        elif not self._transport.is_closing():
            self._transport.abort()  # connection_lost does the rest

    @property
    def pid(self) -> int:
        assert self._child is not None, "opened"
        return self._child.pid

    @property
    def is_lost(self) -> bool:
        return self._ending is not None

    @property
    def is_ready(self) -> bool:
        """Whether the engine has started and can compute, and its process is not lost."""
        return self._is_started and not self.is_lost and self.load.is_alive

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.num_received += 1
        for message in self._reader.feed(data):
            self._handle(decode_from_engine(message))

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        if error is not None and not self.blame:
            self.blame = f"its connection broke: {type(error).__name__}: {error}"
        self._ending = asyncio.create_task(self._end_process())
        self._fail_all(EngineStoppedError(LOST))

    def _fail_all(self, error: TokenmillError) -> None:
        lost = tuple(self.open_requests.values())
        self.at_end = (*self._stopped, *lost)
        self.open_requests.clear()
        self._setup.on_loss()
        for stream in lost:
            if stream.number not in self._calls:  # else `submit` raises the error
                self._setup.on_lost_request(stream, error)
        for waiting in self._calls.values():
            _fail(waiting, error)
        self._calls.clear()

    async def _end_process(self) -> None:
        assert self._child is not None
        asyncio.get_running_loop().remove_reader(self._logs)
        with contextlib.suppress(OSError):
            self._receiver.receive()  # the last records before its end
        await asyncio.to_thread(self._child.kill)
        reason = self.blame or self._child.describe_end()
        how = f"the engine's process did not start: {reason} while {self._stage}"
        _fail(self.ready, EngineStoppedError(how))
        self.lost.set_result(reason)

    # Requests

    async def submit(self, stream: RemoteStream) -> None:
        """Queue the stream's request. Raises what EngineClient.submit raises."""
        if self.is_lost:
            raise EngineStoppedError(LOST)
        assert self._transport is not None, "opened"
        if self._transport.get_write_buffer_size() > UNREAD_BYTES:
            raise OverloadedError("the engine does not take requests at the moment")
        stream.num_engines += 1
        stream.number = next(self._numbers)
        stream.end = partial(self.end, is_read=False)
        self.open_requests[stream.number] = stream
        try:
            answer = await self._call(
                stream.number,
                Submit(stream.number, stream.prompt_token_ids, stream.params, stream.options),
            )
        except BaseException:  # cancelled, lost, or a message that cannot be encoded
            self.end(stream, is_read=False)
            raise
        if isinstance(answer, Refused):
            self.open_requests.pop(stream.number, None)
            stream.num_engines -= 1  # this one has not tried the request
            raise raised_by(answer)
        assert isinstance(answer, Accepted)
        if self.is_lost and not stream.is_finished:
            raise EngineStoppedError(LOST)
        stream.request_id = answer.request_id
        stream.ignored_keywords = answer.ignored_keywords

    def end(self, stream: RemoteStream, *, is_read: bool) -> None:
        """End a request early; with `is_read` its last output follows."""
        known = self.open_requests.get(stream.number) is stream
        if known and not self.is_lost:
            self._send(End(stream.number, is_read))
            if not is_read:
                del self.open_requests[stream.number]

    async def ask(self) -> Report:
        """Ask the engine for a report."""
        number = next(self._numbers)
        answer = await self._call(number, Ask(number))
        assert isinstance(answer, Report)
        self.load = answer.load
        return answer

    async def _call(self, number: int, message: Message) -> Message:
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls[number] = waiting
        self._send(message)
        try:
            return await waiting
        finally:
            self._calls.pop(number, None)

    def _send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(encode(message)))

    # From the engine

    def _handle(self, message: Message) -> None:
        match message:
            case Outputs(load, outputs):
                self.load = load
                for found in outputs:
                    self._deliver(found.number, found.output, found.error)
            case Accepted(number) | Refused(number) | Report(number):
                waiting = self._calls.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case Stage(name, fraction):
                self._stage = name
                self._progress(name, fraction)
            case Ready():
                self._is_started = True
                self.ready.set_result(message)
            case NotStarted():
                self.ready.set_exception(raised_by(message))

    def _deliver(self, number: int, output: RequestOutput | None, error: Refused | None) -> None:
        stream = self.open_requests.get(number)
        if stream is None:
            return  # its reader has left
        if output is not None:
            stream.add(output)
        elif error is not None and error.error == EngineStoppedError.__name__:
            del self.open_requests[number]
            self._stopped.append(stream)
            return self._setup.on_lost_request(stream, EngineStoppedError(LOST))
        elif error is not None:
            stream.fail(raised_by(error))
        if stream.is_finished:
            del self.open_requests[number]
            self._setup.on_end(stream)


def _fail(waiting: asyncio.Future[Any], error: TokenmillError) -> None:
    if not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # its caller may be gone
