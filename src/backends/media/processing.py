"""Lets a process of its own decode and process images, which a bad image may end."""

from __future__ import annotations

from ...core.contract.providers.media_processing import ProcessedImage
from ...core.errors import InvalidRequestError, RequestFailedError
from ...core.log import get_logger
from ...core.processes.channels.frames import receive, send
from ...core.processes.channels.messages import NotStarted, Refused, encode
from ...core.processes.channels.refusals import raised_by
from ...core.processes.child import Child, spawn
from .messages import Failed, Processed, ProcessorStart, Ready, Reply, decode_reply
from .worker import CPU_SECONDS

log = get_logger("media")

START_SECONDS = 120.0
"""Time limit for the start of the process. It takes 0.3 s; a very busy machine needs longer."""
IMAGE_SECONDS = 120.0
"""Time limit for an image, for a process that hangs without computing: see CPU_SECONDS."""
NOT_DECODED = "the image could not be decoded"
BUG = "the image could not be processed: a bug of the server"
TOO_SLOW = f"{NOT_DECODED} within {CPU_SECONDS:g} s"


class MediaProcess:
    """A process that handles one image after the other. It is started for the first image, and
    again after an image has killed it. One thread uses it."""

    def __init__(self, start: ProcessorStart) -> None:
        self._start = start
        self._child: Child | None = None
        self._is_closed = False

    def process(self, data: bytes) -> ProcessedImage:
        """Decode and process an image file.

        Raises InvalidRequestError if it cannot be read or if the process ends meanwhile, and
        RequestFailedError if the processor cannot be started or has a bug.
        """
        reply = self._exchange(self._living_child(), data)
        if isinstance(reply, Refused):
            raise raised_by(reply)
        if isinstance(reply, Processed):
            return reply.image
        reason = reply.reason if isinstance(reply, Failed) else f"it answered {reply!r:.100}"
        log.error("media_processor_failed", plugin=self._start.plugin, reason=reason)
        raise RequestFailedError(BUG)

    def close(self) -> None:
        """End the process. Any thread may call this."""
        self._is_closed = True
        self._end_child()

    def _exchange(self, child: Child, data: bytes) -> Reply:
        try:
            child.sockets[0].settimeout(IMAGE_SECONDS)
            send(child.sockets[0], data)
            reply: Reply = decode_reply(receive(child.sockets[0], IMAGE_SECONDS))
            return reply
        except TimeoutError:
            cause = TOO_SLOW
        except (EOFError, OSError):
            cause = TOO_SLOW if child.describe_end() == "killed by SIGPROF" else NOT_DECODED
        log.warning("media_process_ended", how=child.describe_end(), bytes=len(data))
        self._end_child()
        raise InvalidRequestError(cause)

    def _living_child(self) -> Child:
        if self._child is None or not self._child.is_alive:
            self._end_child()
            child = self._child = spawn(f"{__package__}.worker:main")
            if self._is_closed:  # meanwhile
                child.kill()
            self._begin(child)
        return self._child

    def _begin(self, child: Child) -> None:
        """Wait until a process is ready."""
        try:
            child.sockets[0].settimeout(START_SECONDS)
            send(child.sockets[0], encode(self._start))
            reply = decode_reply(receive(child.sockets[0], START_SECONDS))
        except (EOFError, OSError, TimeoutError):
            reason = child.describe_end()
        else:
            if isinstance(reply, Ready):
                return
            reason = reply.text if isinstance(reply, NotStarted) else f"it answered {reply!r:.100}"
        self._end_child()
        log.error("media_process_not_started", plugin=self._start.plugin, reason=reason)
        raise RequestFailedError("images cannot be read: their process could not be started")

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
