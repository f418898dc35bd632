"""The engine's side: runs an engine in this process for a client in the parent process."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ..config import EngineConfig
from ..contract.registry import Replica
from ..errors import (
    CONTAINED_WHILE_WAITING,
    EngineStoppedError,
    RequestFailedError,
    TokenmillError,
)
from ..host.calling.start_limit import StartLimit
from ..interfaces import Progress
from ..log import get_logger
from ..plan import TokenLogprobs
from ..processes.channels.frames import FrameReader, frame, receive
from ..processes.channels.messages import Message, Stage, encode
from ..processes.channels.refusals import describe_refusal, not_started
from ..processes.logs import forward_logs
from ..processes.watching.board import Board, receive_board
from ..shell.engine_shell import EngineShell
from ..shell.local_engine import LocalEngine
from ..shell.output_stream import OutputStream
from .messages import (
    Accepted,
    Ask,
    CacheReset,
    Died,
    End,
    Explain,
    Explained,
    MeasureRegions,
    Observe,
    Observed,
    Output,
    Outputs,
    Pixels,
    Ready,
    Report,
    ResetCache,
    Scored,
    StartEngine,
    Stop,
    Submit,
    TraceBack,
    Traced,
    TracedAll,
    decode_to_engine,
)

BEAT_SECONDS = 0.25
"""Time between two signs of life of the event loop. The client takes a much longer silence for a
hang."""
UNSENT_BYTES = 1 << 20
"""Unsent bytes from which outputs stay in their streams, which join them, until the client reads
again."""
SCORED_TOKENS = 64
"""Prompt tokens whose log-probabilities go into one message. Their decoding takes 0.3 ms."""
LAST_WORDS = 1.0
"""Seconds to send the last messages."""
MakeEngine = Callable[[EngineConfig, Progress, Replica], EngineShell]
log = get_logger("engine")


def run_engine(control: socket.socket, logs: socket.socket, make_engine: MakeEngine) -> None:
    """Start the engine that the first message describes, and serve it until the client leaves.

    Ends the process, even if the device still computes.
    """
    with suppress(EOFError):
        board = receive_board(control)
        start = decode_to_engine(receive(control))
        assert isinstance(start, StartEngine)
        start.place.enter()
        forward_logs(logs, start.log_level)
        asyncio.run(_serve(control, board, start, make_engine))
    sys.stderr.flush()
    os._exit(0)


async def _serve(
    control: socket.socket, board: Board, start: StartEngine, make_engine: MakeEngine
) -> None:
    loop = asyncio.get_running_loop()
    control.setblocking(False)
    _, process = await loop.create_connection(lambda: EngineProcess(board), sock=control)
    await process.run(start, make_engine)


class EngineProcess(asyncio.Protocol):
    """Serves one engine over one connection."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._streams: dict[int, OutputStream] = {}
        self._numbers: dict[OutputStream, int] = {}
        self._news: dict[OutputStream, None] = {}
        """Streams with unsent outputs, in the order in which they got them."""
        self._pixels: defaultdict[int, dict[bytes, bytes]] = defaultdict(dict)
        """Pixels of items whose requests have not arrived yet, by request number and digest."""
        self._submitting: dict[int, asyncio.Task[None]] = {}
        self._tracing: set[asyncio.Task[None]] = set()
        self._is_flush_due = False
        self._is_paused = False
        self._left = asyncio.Event()
        """Set when the client needs no more outputs."""
        self._closed = asyncio.Event()

    async def run(self, start: StartEngine, make_engine: MakeEngine) -> None:
        """Start the engine, and serve it until the client leaves or the engine dies."""
        try:
            with StartLimit(start.config.plugin_start_timeout, self._board.show_plugin):
                self._engine = make_engine(start.config, self._show_progress, start.replica)
                running = self._engine.running
                assert isinstance(running, LocalEngine)
                self._running, running.board = running, self._board
                await self._engine.start()
        except CONTAINED_WHILE_WAITING as error:
            if not isinstance(error, TokenmillError):
                log.exception("engine_not_started")
            self._send(not_started(error, "the engine"))
        else:
            gc.collect()
            gc.freeze()  # these objects stay: looking through them again takes as long as steps
            self._send(Ready(self._engine.info, self._engine.max_model_len))
            self._running.prepare_grammars()
            await self._beat()
            await self._engine.close()
        self._transport.close()  # sends the remaining messages
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), LAST_WORDS)

    async def _beat(self) -> None:
        """Send signs of life until the client leaves. A dead engine sends its last outputs first,
        and ends the process: the client starts another one."""
        while not self._left.is_set():
            self._board.beat()
            self._flush()
            if not self._engine.load().is_alive:
                self._send(Died(self._running.death or "the engine was closed"))
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), BEAT_SECONDS)

    # asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self._handle(decode_to_engine(message))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._news:
            self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._left.set()
        self._closed.set()

    # From the client

    def _handle(self, message: Message) -> None:
        match message:
            case Pixels(number, digest, data):
                self._pixels[number][digest] = data
            case Submit(number, request):
                pixels = self._pixels.pop(number, {})
                message = Submit(number, request.with_pixels(pixels))
                task = self._loop.create_task(self._submit(message))
                self._submitting[number] = task
                task.add_done_callback(partial(self._forget_submission, number))
            case End():
                self._end(message)
            case Ask():
                self._report(message.number)
            case ResetCache(number):
                self._send(CacheReset(number, self._running.reset_prefix_cache_now()))
            case Explain(number, request_id, count):
                self._send(Explained(number, self._running.explain_now(request_id, count)))
            case Observe(number, after_step):
                self._send(Observed(number, self._running.activity_now(after_step)))
            case TraceBack(number, since):
                task = self._loop.create_task(self._trace(number, since))
                self._tracing.add(task)
                task.add_done_callback(self._tracing.discard)
            case MeasureRegions(until):
                self._running.measure_regions_now(until)
            case Stop():
                self._left.set()

    async def _submit(self, message: Submit) -> None:
        number = message.number
        try:
            stream = await self._running.queue(
                message.request, None, time.monotonic(), number=number
            )
        except CONTAINED_WHILE_WAITING as error:
            if not isinstance(error, TokenmillError):
                log.exception("submit_failed")
                error = RequestFailedError("the engine could not take this request")
            self._send(describe_refusal(number, error))
        else:
            self._streams[number] = stream
            self._numbers[stream] = number
            self._send(Accepted(number, stream.request_id, stream.ignored_keywords))
            stream.on_news = self._note_news

    def _forget_submission(self, number: int, task: asyncio.Task[None]) -> None:
        if self._submitting.get(number) is task:
            del self._submitting[number]

    def _end(self, message: End) -> None:
        self._pixels.pop(message.number, None)
        task = self._submitting.get(message.number)
        if task is not None and not task.done():
            task.cancel()
            error = EngineStoppedError("the request was ended before it was accepted")
            self._send(describe_refusal(message.number, error))
            return
        if (stream := self._streams.get(message.number)) is None:
            return
        if not message.is_read:
            self._forget(stream)
        stream.abort()

    async def _trace(self, number: int, since: float) -> None:
        async for piece in self._running.trace_pieces(since):
            self._send(Traced(number, piece))
        self._send(TracedAll(number))

    def _report(self, number: int) -> None:
        engine = self._engine
        facts = engine.plugins(), engine.hook_stats(), engine.render_metrics()
        self._send(Report(number, engine.load(), *facts, engine.live_requests()))

    # To the client

    def _show_progress(self, stage: str, fraction: float) -> None:
        """Called from any thread."""
        self._board.show_stage(stage)
        self._loop.call_soon_threadsafe(self._send, Stage(stage, fraction))

    def _note_news(self, stream: OutputStream) -> None:
        """Note that a stream has new outputs. All that are noted in a turn of the loop are sent in
        one message."""
        self._news[stream] = None
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_paused:
            return
        outputs = tuple(self._read(stream) for stream in self._news if stream in self._numbers)
        self._news.clear()
        self._send(Outputs(self._engine.load(), outputs))

    def _read(self, stream: OutputStream) -> Output:
        number = self._numbers[stream]
        if stream.is_finished:
            self._forget(stream)
        self._send_scored(number, stream.take_prompt_logprobs() or ())
        try:
            return Output(number, stream.read())
        except TokenmillError as error:
            return Output(number, None, describe_refusal(number, error))

    def _send_scored(self, number: int, logprobs: Sequence[TokenLogprobs | None]) -> None:
        for start in range(0, len(logprobs), SCORED_TOKENS):
            self._send(Scored(number, tuple(logprobs[start : start + SCORED_TOKENS])))

    def _forget(self, stream: OutputStream) -> None:
        del self._streams[self._numbers.pop(stream)]

    def _send(self, message: Message) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame(encode(message)))
