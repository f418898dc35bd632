"""Sends batches to all consumers, and old ones again to those that ask.

One thread encodes and publishes, another answers the requests for old batches. The engine's thread
only puts changes into a queue: neither a slow consumer nor encoding delays a step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import zmq

from ....plugin import ConfigError, RemovedBlock, StoredBlock
from .settings import KVEventsSettings
from .wire import AllBlocksCleared, KVEventBatch, make_events

if TYPE_CHECKING:
    from prometheus_client import Counter

LAST_BATCHES_MS = 1000
"""Time that the last batches get to reach the consumers when the engine closes."""
REPLAY_TIMEOUT_MS = 5000
"""Time after which a consumer that asked for batches and does not take them gets no more."""
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)

Changes = Sequence[StoredBlock | RemovedBlock]


class Publisher:
    """Numbers batches from 0 and publishes them: topic, number, batch.

    A dropped batch keeps its number, so that consumers notice it. `begin`, `put` and `close` are
    called from one thread at a time.
    """

    def __init__(
        self,
        settings: KVEventsSettings,
        *,
        replica: int,
        dropped_by_queue: Counter,
        dropped_by_consumer: Counter,
    ) -> None:
        self._settings = settings
        self._replica = replica
        self._topic = settings.topic.encode()
        self._dropped_by_queue = dropped_by_queue
        self._dropped_by_consumer = dropped_by_consumer
        self._windows: Sequence[int | None] = (None,)
        self._queue: queue.Queue[tuple[int, float, Changes | None] | None] = queue.Queue(
            settings.max_queue_size
        )
        self.num_batches = 0
        """Number of batches so far, dropped ones included."""
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._lock = threading.Lock()
        """Held to read or write `_sent`."""
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Open the sockets and start the threads. Raises ConfigError."""
        settings, self._context = self._settings, zmq.Context()
        publishing = self._context.socket(zmq.PUB)
        publishing.setsockopt(zmq.SNDHWM, settings.hwm)
        publishing.setsockopt(zmq.LINGER, LAST_BATCHES_MS)
        publishing.setsockopt(zmq.XPUB_NODROP, 1)  # a full consumer is an error; see _send
        _attach(publishing, settings.endpoint, binds=is_bound(settings.endpoint))
        self._start(self._publish, publishing)
        if settings.replay_endpoint is None:
            return
        replaying = self._context.socket(zmq.ROUTER)
        replaying.setsockopt(zmq.LINGER, 0)
        replaying.setsockopt(zmq.ROUTER_MANDATORY, 1)  # wait for a full consumer: do not drop
        replaying.setsockopt(zmq.SNDTIMEO, REPLAY_TIMEOUT_MS)
        _attach(replaying, settings.replay_endpoint, binds=True)
        self._start(self._answer, replaying)

    def begin(self, windows: Sequence[int | None]) -> None:
        """Publish that the cache is empty. `windows`: `ModelInfo.kv_windows`."""
        self._windows = windows
        self.put(None)

    def put(self, changes: Changes | None) -> None:
        """Publish changes of the prefix cache, or that it is empty (None). It never waits."""
        number, self.num_batches = self.num_batches, self.num_batches + 1
        try:
            self._queue.put_nowait((number, time.time(), changes))
        except queue.Full:
            self._dropped_by_queue.inc()

    def close(self) -> None:
        """Publish what is queued, and end the threads. It waits about LAST_BATCHES_MS at most."""
        while self._threads and self._threads[0].is_alive():
            with suppress(queue.Full):
                self._queue.put(None, timeout=0.1)
                self._threads[0].join()
        assert self._context is not None
        self._context.term()  # the other thread's socket raises ContextTerminated
        for thread in self._threads:
            thread.join()

    # The thread that publishes

    def _publish(self, socket: zmq.Socket[bytes]) -> None:
        encoder = msgspec.msgpack.Encoder()
        while (batch := self._queue.get()) is not None:
            number, at, changes = batch
            events = (
                [AllBlocksCleared()] if changes is None else make_events(changes, self._windows)
            )
            encoded = encoder.encode(KVEventBatch(at, events, self._replica))
            with self._lock:
                self._sent.append((number, encoded))
            self._send(socket, (self._topic, _as_bytes(number), encoded))

    def _send(self, socket: zmq.Socket[bytes], parts: Sequence[bytes]) -> None:
        """Send to every consumer that is not full."""
        try:
            socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self._dropped_by_consumer.inc()
            socket.setsockopt(zmq.XPUB_NODROP, 0)
            socket.send_multipart(parts, zmq.NOBLOCK)
            socket.setsockopt(zmq.XPUB_NODROP, 1)

    # The thread that answers requests for old batches

    def _answer(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            try:
                self._replay(socket, socket.recv_multipart())
            except zmq.ContextTerminated:
                return
            except zmq.ZMQError:
                continue  # the consumer is gone or takes nothing

    def _replay(self, socket: zmq.Socket[bytes], request: Sequence[bytes]) -> None:
        """Send the batches from a number on, and the end. A wrong request gets no answer."""
        if len(request) != 3 or len(request[2]) != 8:
            return
        consumer, first = request[0], int.from_bytes(request[2], "big")
        with self._lock:
            found = [one for one in self._sent if one[0] >= first]
        for number, encoded in found:
            socket.send_multipart((consumer, b"", _as_bytes(number), encoded))
        socket.send_multipart((consumer, b"", END_OF_REPLAY, b""))

    def _start(self, work: Callable[[zmq.Socket[bytes]], None], socket: zmq.Socket[bytes]) -> None:
        def run() -> None:
            with socket:
                work(socket)

        thread = threading.Thread(target=run, name=f"kv-events {work.__name__}", daemon=True)
        self._threads.append(thread)
        thread.start()


def is_bound(endpoint: str) -> bool:
    """Whether consumers connect to the endpoint; else the publisher connects to a consumer's.

    The rule is vLLM's, but loopback, the default, and 0.0.0.0 are bound, too.
    """
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    is_own = host.startswith("127.") or host in ("localhost", "0.0.0.0")
    return is_own or "*" in host or "::" in host or endpoint.startswith("ipc://")


def _attach(socket: zmq.Socket[bytes], endpoint: str, *, binds: bool) -> None:
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        if binds:
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        what = "listen at" if binds else "connect to"
        raise ConfigError(f"--kv-events-config: cannot {what} {endpoint}: {error}") from error


def _as_bytes(number: int) -> bytes:
    return number.to_bytes(8, "big")
