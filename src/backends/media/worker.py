"""The process that decodes and processes images. It may die of one: its time and memory are
limited."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from ...core.contract.providers.media_processing import MediaProcessor, ProcessedImage
from ...core.errors import CONTAINED, InvalidRequestError, describe
from ...core.processes.channels.frames import receive, send
from ...core.processes.channels.messages import Refused, encode
from ...core.processes.channels.refusals import describe_refusal, not_started
from ...core.processes.entry import import_by_name
from ...core.processes.free_memory import return_free_memory
from ...core.processes.limits import limit_memory, limited_time
from .messages import Failed, Processed, ProcessorStart, Ready, decode_start

CPU_SECONDS = 10.0
"""CPU time limit of an image. One of 32 million pixels takes 2 s."""
BYTES_PER_PIXEL = 24
"""Memory that an image may need. Transparency takes four copies of four bytes each."""
MORE_BYTES = 256 << 20
"""Memory that every image may need in addition: its file, its tiles, its answer."""
NICENESS = 5
"""Lets a core that is shared with the engine compute tokens first, but not only tokens."""


def main(sock: socket.socket) -> None:
    """Answer each image with a message, until the other side is gone."""
    with contextlib.suppress(EOFError):
        os.nice(NICENESS)
        _die_first()
        start = decode_start(receive(sock))
        try:
            from .decoding import limit_pixels  # with Pillow, which may be missing

            processor = _make(start)
            limit_pixels(start.max_pixels)
        except Exception as error:
            send(sock, encode(not_started(error, "the media processor")))
            return
        memory = BYTES_PER_PIXEL * start.max_pixels + MORE_BYTES
        limit_memory(memory)
        send(sock, encode(Ready()))
        while True:
            data = receive(sock)
            with limited_time(CPU_SECONDS):
                reply = encode(answer(processor, data, start.max_pixels, memory))
            send(sock, reply)
            del data, reply
            return_free_memory()


def answer(
    processor: MediaProcessor, data: bytes, max_pixels: int, memory: int
) -> Processed | Refused | Failed:
    """Decode and process an image."""
    from .decoding import decode

    try:
        image = decode(data, max_pixels)
        return Processed(_checked(processor.process(image)))
    except InvalidRequestError as refusal:
        return describe_refusal(0, refusal)
    except MemoryError:
        text = f"the image needs more than {memory >> 20} MiB to be decoded"
        return describe_refusal(0, InvalidRequestError(text))
    except CONTAINED as error:
        return Failed(describe(error))


def _die_first() -> None:
    """Let Linux end this process, and not the engine, if the machine has no memory left."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _checked(image: Any) -> ProcessedImage:
    if not isinstance(image, ProcessedImage):
        raise TypeError(f"'process' must return ProcessedImage, got {image!r:.100}")
    return image


def _make(start: ProcessorStart) -> MediaProcessor:
    factory = import_by_name(start.factory)
    arguments = []
    if start.options_type is not None:
        arguments.append(import_by_name(start.options_type)(**start.options))
    processor: MediaProcessor = factory(*arguments)(start.config, start.kwargs)
    return processor
