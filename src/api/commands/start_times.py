"""Remembers in the user's cache how long each stage of a start took: the next start shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from ...assembly import cache_folder
from ...core.errors import TokenmillError

FILE = "start-times.json"
MAX_STARTS = 32
"""Number of different starts that are remembered; the oldest are forgotten."""
_MAX_BYTES = 1 << 16
Times = dict[str, float]
"""Seconds, by stage."""
_decode = msgspec.json.Decoder(dict[str, Times]).decode


def last_times(start: str) -> Times:
    """The durations of the last start of this kind; empty before the first start."""
    return _read(_path()).get(start, {})


def remember(start: str, seconds: Mapping[str, float]) -> None:
    """Remember the durations of the stages. If that is not possible, the next start expects none.

    Stages that did not run this time, such as a compilation, keep their earlier durations.
    """
    path = _path()
    if path is None or not seconds:
        return
    starts = _read(path)
    latest = starts.pop(start, {}) | {name: round(time, 2) for name, time in seconds.items()}
    kept = dict([*starts.items(), (start, latest)][-MAX_STARTS:])
    partial = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.write_bytes(msgspec.json.encode(kept))
        partial.replace(path)


def _path() -> Path | None:
    try:
        return cache_folder() / FILE
    except TokenmillError:
        return None


def _read(path: Path | None) -> dict[str, Times]:
    with suppress(OSError, msgspec.DecodeError):
        if path is not None and path.stat().st_size <= _MAX_BYTES:
            return _decode(path.read_bytes())
    return {}
