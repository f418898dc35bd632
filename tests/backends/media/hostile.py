"""A media processor that some images harm, by their width. It also runs in the child process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from tokenmill.backends.media import worker
from tokenmill.core.contract.providers.media_processing import Pixels, ProcessedImage
from tokenmill.core.errors import InvalidRequestError

SPINS, EATS, CRASHES, KILLED, FAILS, ANSWERS_WRONG, WRITES_WRONG, REFUSED, WAITS = range(101, 110)
"""Widths."""


class Hostile:
    """One item with the image's own pixels, and as many tokens as it is high."""

    name = "hostile"

    @classmethod
    def reasons_against(cls, config: Mapping[str, Any]) -> list[str]:
        return []

    def __init__(self, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        pass

    def num_tokens(self, width: int, height: int) -> int:
        return height

    def process(self, image: Image.Image) -> Any:
        _HARM.get(image.width, lambda: None)()
        if image.width == ANSWERS_WRONG:
            return image
        pixels = Pixels(
            shape=(image.height, image.width, 3),
            data=image.tobytes(),
            num_tokens=image.height,
            cost=image.width,
        )
        text = "x" if image.width == WRITES_WRONG else "<image>" * image.height
        return ProcessedImage(text=f"({text})", items=(pixels,))


def make_hostile() -> type[Hostile]:
    return Hostile


def make_impatient() -> type[Hostile]:
    """For the child process: its images get less time."""
    worker.CPU_SECONDS = 0.3
    return Hostile


def make_broken() -> type[Hostile]:
    raise RuntimeError("at /some/path")


def _spin() -> None:
    while True:
        pass


def _eat() -> None:
    kept = []
    while True:
        kept.append(bytes(1 << 24))


def _fail() -> None:
    raise RuntimeError("<object at 0x7f00>")


def _refuse() -> None:
    raise InvalidRequestError("the image is ugly")


_HARM: dict[int, Callable[[], None]] = {
    SPINS: _spin,
    EATS: _eat,
    CRASHES: lambda: os.kill(os.getpid(), signal.SIGSEGV),
    KILLED: lambda: os.kill(os.getpid(), signal.SIGKILL),
    FAILS: _fail,
    REFUSED: _refuse,
    WAITS: lambda: time.sleep(0.2),
}
