"""The client's side of one engine process, from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from ..config import EngineConfig
from ..contract.activity import Activity
from ..contract.client import Load
from ..contract.explanation import Explanation
from ..contract.registry import Replica
from ..contract.trace import Trace, join_pieces
from ..errors import EngineStoppedError, OverloadedError, TokenmillError
from ..host.calling.running_calls import RunningCall, read_calls
from ..interfaces import Progress
from ..log import get_logger
from ..outputs import RequestOutput
from ..processes.channels.frames import FrameReader, frame
from ..processes.channels.messages import Message, NotStarted, Refused, Stage, encode
from ..processes.channels.refusals import raised_by
from ..processes.child import END_SECONDS, Child, spawn
from ..processes.logs import LogReceiver, current_level
from ..processes.place import Place
from ..processes.printed import PrintedPipe, show_printed
from ..processes.watching.board import share_board
from ..processes.watching.crashes import is_crash, num_oom_kills
from .crash_suspects import CrashSuspects
from .messages import (
    Accepted,
    Answer,
    Ask,
    CacheReset,
    Died,
    End,
    Explain,
    Explained,
    MeasureRegions,
    Observe,
    Observed,
    Outputs,
    Pixels,
    Question,
    Ready,
    Report,
    ResetCache,
    Scored,
    StartEngine,
    Stop,
    Submit,
    TraceBack,
    Traced,
    decode_from_engine,
)
from .stream import RemoteStream

UNREAD_BYTES = 8 << 20
"""New requests are refused if the engine has not read this many bytes: it hangs, or is too busy."""
SENDING_BYTES = 1 << 30
"""Maximum size of the pixels of all requests whose pixels are being sent. A single request may have
more."""
IDLE = Load(
    num_running=0,
    num_waiting=0,
    kv_cache_usage=0.0,
    stalled_for=0.0,
    is_alive=True,
    is_draining=False,
)
"""The load of an engine that has not reported any."""
MAX_LEFT = 256
"""Maximum number of prompts to remember whose readers have left. The engine may compute them."""
LOST = "the engine failed; it is started again"
A = TypeVar("A", bound=Answer)
log = get_logger("engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """The settings of an engine process, and the functions to call about its requests."""

    target: str
    """Function of the child process, see `processes.child.spawn`."""
    config: EngineConfig
    replica: Replica
    place: Place
    suspects: CrashSuspects
    """Shared by all engines of the server, because a client that sends a request again may reach
    any of them."""
    lost_steps: Path | None
    """Folder for the last steps of engines that are lost. None: there is none."""
    on_loss: Callable[[], None]
    """Called when the engine is lost, before it is started again."""
    on_lost_request: Callable[[RemoteStream, TokenmillError], None]
    """Called for each accepted request of an engine that stops or is lost, with its error."""


class EngineLink(asyncio.Protocol):
    """One engine process with its open requests."""

    def __init__(self, setup: EngineSetup, progress: Progress) -> None:
        self.load = IDLE
        """The last load that the engine reported."""
        self.is_explained = False
        """Whether the engine is lost, and the request that is the cause is refused from now on."""
        self.blame = ""
        """Why this side killed the process, or why the engine ends it."""
        self.open_requests: dict[int, RemoteStream] = {}
        self.at_end: tuple[RemoteStream, ...] = ()
        """The requests that were open when the engine was lost, or when it lost its device."""
        self.in_work: tuple[tuple[str, int], ...] = ()
        """The requests in the unfinished steps of a lost engine, each with the number of its tokens
        that would have been computed after them."""
        self._stopped: list[RemoteStream] = []  # requests of an engine that lost its device
        self._left: deque[tuple[int, bytes]] = deque(maxlen=MAX_LEFT)
        """Numbers and digests of requests whose readers have left."""
        self._num_oom_kills = num_oom_kills()
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()
        """Done when the process has ended, with the reason."""
        self._setup = setup
        self._progress = progress
        self._reader = FrameReader()
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._pieces: dict[int, list[Trace]] = {}
        """The pieces of traces that are being sent."""
        self._ending: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._transport: asyncio.Transport | None = None
        self._can_write = asyncio.Event()
        """Cleared while the engine has much to read."""
        self._can_write.set()
        self._sending: dict[int, int] = {}
        """The size of the pixels of each request whose pixels are being sent, by number."""
        self._is_started = False
        self.running_calls: tuple[RunningCall, ...] = ()
        """The hooks that ran when the engine was lost."""

    # Life

    async def open(self) -> Ready:
        """Start the process, and wait until its engine is ready.

        Raises what the engine's start raises, OSError if there is no process or memory for it, and
        EngineStoppedError if the process ends, with how and at which stage.
        """
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)  # messages, and log records
        self._printed = PrintedPipe(show_printed)
        try:
            self._child = spawn(self._setup.target, kinds, output=self._printed.writer)
            self._printed.close_writer()
            await self._connect(*self._child.sockets)
        except OSError:
            if self._child is not None:
                self._child.kill()
                self._child = None
            self._printed.close()
            raise
        setup = self._setup
        self._send(StartEngine(setup.config, current_level(), setup.replica, setup.place))
        return await self.ready

    async def _connect(self, control: socket.socket, logs: socket.socket) -> None:
        self.board = share_board(control, self._setup.config.max_num_seqs)
        self.board.show_stage("starting")
        control.setblocking(False)
        logs.setblocking(False)
        loop = asyncio.get_running_loop()
        self._logs, self._receiver = logs, LogReceiver(logs)
        loop.add_reader(logs, self._receiver.receive)
        loop.add_reader(self._printed.fd, self._receive_printed)
        await loop.create_connection(lambda: self, sock=control)

    def _receive_printed(self) -> None:
        if not self._printed.receive():  # all its writers have ended
            asyncio.get_running_loop().remove_reader(self._printed.fd)

    async def close(self, patience: float) -> None:
        """Let the engine close within `patience` seconds, and end the process in any case."""
        if self._child is None:
            return
        if patience:
            self._send(Stop())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.lost), patience)
        if patience and not self.lost.done():
            calls = map(str, read_calls(self.board))
            reason = " ".join((f"it did not stop within {patience:g} s", *calls))
            log.warning("engine_killed", reason=reason)
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self._handle(decode_from_engine(message))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_lost:
            self._can_write.set()
            self._ending = asyncio.create_task(self._end_process(error))

    def _fail_all(self, error: TokenmillError) -> None:
        lost = tuple(self.open_requests.values())
        self.at_end = (*self._stopped, *lost)
        self.open_requests.clear()
        self._setup.on_loss()
        raised = self._calls.keys() | self._sending.keys()  # by `submit`
        for stream in lost:
            if stream.number not in raised:
                self._setup.on_lost_request(stream, error)
        for waiting in self._calls.values():
            _fail(waiting, error)
        self._calls.clear()

    async def _end_process(self, error: Exception | None) -> None:
        assert self._child is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._logs)
        with contextlib.suppress(OSError):
            self._receiver.receive()  # the last records before its end
        has_ended = bool(self.blame) or await asyncio.to_thread(self._child.wait, END_SECONDS)
        if not has_ended:
            self.blame = f"closed its connection: {error!r}" if error else "closed its connection"
        reason = self.blame or self._child.describe_end()
        self.running_calls = read_calls(self.board)
        work, streams = self.board.in_work(), self._streams()
        self.in_work = tuple((streams[n].request_id, work[n]) for n in work if n in streams)
        reason = " ".join((reason, *map(str, self.running_calls)))
        if not self._stopped and (
            self.blame or is_crash(self._child.end_signal, self._num_oom_kills)
        ):
            self._note_crash()
        self._fail_all(EngineStoppedError(LOST))
        await asyncio.to_thread(self._child.kill)
        loop.remove_reader(self._printed.fd)
        self._printed.close()
        how = f"the engine's process did not start: {reason} while {self.board.stage}"
        _fail(self.ready, EngineStoppedError(how))
        self.lost.set_result(reason)

    def note_oom_kills(self) -> None:
        """Call it from time to time, so that a kill for lack of memory is known as one."""
        self._num_oom_kills = num_oom_kills()

    def clear_suspects(self) -> None:
        """Clear the suspects of earlier crashes that this engine has computed by now."""
        if suspects := self._setup.suspects:
            for number, num_tokens in self.board.computed().items():
                if (stream := self.open_requests.get(number)) is not None:
                    suspects.clear(stream.digest, num_tokens)

    def _note_crash(self) -> None:
        """Suspect the requests that the engine computed when it was lost. If it computed none, for
        example because it planned a step, any request may be the cause."""
        if self.board.is_excused:
            return
        found = self.board.in_work()
        streams = self._streams()
        digests = dict(self._left) | {n: streams[n].digest for n in found.keys() & streams.keys()}
        present = {digests[n]: end for n, end in found.items() if n in digests}
        if not found:
            present = {stream.digest: 0 for stream in self.open_requests.values()}
        self.is_explained = self._setup.suspects.add_crash(present)

    def _streams(self) -> dict[int, RemoteStream]:
        """The requests that the engine may compute, by number."""
        return {one.number: one for one in (*self._stopped, *self.open_requests.values())}

    # Requests

    async def submit(self, stream: RemoteStream) -> None:
        """Queue the stream's request. Raises what EngineClient.submit raises."""
        if self.is_lost:
            raise EngineStoppedError(LOST)
        assert self._transport is not None, "opened"
        if self._transport.get_write_buffer_size() > UNREAD_BYTES:
            raise OverloadedError("the engine does not take requests at the moment")
        size = sum(len(item.pixels) for item in stream.request.media)
        if size and self._sending and sum(self._sending.values()) + size > SENDING_BYTES:
            raise OverloadedError("too many images are on their way; try again later")
        stream.num_engines += 1
        stream.times.send()
        stream.number = next(self._numbers)
        stream.end = partial(self.end, is_read=False)
        self.open_requests[stream.number] = stream
        try:
            await self._send_pixels(stream, size)
            answer = await self._call(
                stream.number,
                Submit(stream.number, stream.request.without_pixels()),
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

    async def _send_pixels(self, stream: RemoteStream, size: int) -> None:
        """Send the pixels of a request before the request, as fast as the engine reads them.

        `size`: of all, in bytes. Messages of other requests may be sent between them. Raises
        EngineStoppedError if the engine is lost, or the request ends meanwhile.
        """
        number = stream.number
        self._sending[number] = size
        try:
            for item in stream.request.media:
                while not self._can_write.is_set():
                    await self._can_write.wait()
                if self.is_lost:
                    self.open_requests.pop(number, None)
                    raise EngineStoppedError(LOST)
                if number not in self.open_requests:
                    raise EngineStoppedError("the request was ended before it was accepted")
                self._send(Pixels(number, item.digest, item.pixels))
        finally:
            del self._sending[number]

    def end(self, stream: RemoteStream, *, is_read: bool) -> None:
        """End a request early; with `is_read` its last output follows."""
        known = self.open_requests.get(stream.number) is stream
        if known and not self.is_lost:
            self._send(End(stream.number, is_read))
            if not is_read or stream.number in self._sending:
                del self.open_requests[stream.number]
                self._left.append((stream.number, stream.digest))

    async def ask(self) -> Report:
        report = await self._ask(Report, Ask)
        self.load = report.load
        return report

    async def reset_prefix_cache(self) -> bool:
        return (await self._ask(CacheReset, ResetCache)).is_empty

    async def explain(self, request_id: str | None, count: int) -> tuple[Explanation, ...]:
        """Ask the engine for the explanations of a request, or of the slowest ones."""
        return (await self._ask(Explained, Explain, request_id, count)).found

    async def activity(self, after_step: int) -> Activity:
        return (await self._ask(Observed, Observe, after_step)).found

    def measure_regions(self, until: float) -> None:
        """Ask for the regions of the engine's steps until a time of the monotonic clock."""
        if not self.is_lost:
            self._send(MeasureRegions(until))

    async def trace(self, since: float) -> Trace:
        """Ask the engine for its last steps."""
        number = next(self._numbers)
        pieces = self._pieces[number] = []
        try:
            await self._call(number, TraceBack(number, since))
        finally:
            del self._pieces[number]
        return join_pieces(pieces)

    async def _ask(self, kind: type[A], question: type[Question], *fields: Any) -> A:
        """Send a question, whose first field is its number, and return the answer."""
        number = next(self._numbers)
        answer = await self._call(number, question(number, *fields))
        assert isinstance(answer, kind)
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
            case Scored(number, logprobs):
                if (stream := self.open_requests.get(number)) is not None:
                    stream.scored += logprobs
            case Answer(number) | Refused(number):
                waiting = self._calls.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case Traced(number, piece):
                if number in self._pieces:
                    self._pieces[number].append(piece)
            case Stage(name, fraction):
                self._progress(name, fraction)
            case Ready():
                self._is_started = True
                self.ready.set_result(message)
            case Died(reason):
                self.blame = self.blame or reason
                self.load = replace(self.load, is_alive=False)  # its end may take long
            case NotStarted():
                self.ready.set_exception(raised_by(message))

    def _deliver(self, number: int, output: RequestOutput | None, error: Refused | None) -> None:
        stream = self.open_requests.get(number)
        if stream is None:
            return  # its reader has left
        if output is not None:
            stream.add(output)
        elif error is not None and error.error == EngineStoppedError.__name__:
            if not self._stopped:
                self._note_crash()
            del self.open_requests[number]
            self._stopped.append(stream)
            return self._setup.on_lost_request(stream, EngineStoppedError(LOST))
        elif error is not None:
            stream.fail(raised_by(error))
        if stream.is_finished:
            del self.open_requests[number]
            if self._setup.suspects:
                self._setup.suspects.clear(stream.digest)


def _fail(waiting: asyncio.Future[Any], error: TokenmillError) -> None:
    if not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # its caller may be gone
