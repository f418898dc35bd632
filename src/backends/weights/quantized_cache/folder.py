"""The folder of cached models: lists and removes files, and keeps their total size limited."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ....core.errors import ConfigError
from ....core.wording.suggest import near_and_known
from ...machine.compiling import cache_folder

MADE, BEING_MADE = ".safetensors", ".making"
"""Ends of the names of files."""
_DEFAULT_LIMIT = 20 << 30
"""Bytes: several models of 8 billion parameters in 4 bits."""
_MAX_SHARE = 4
"""By default, the files take at most a quarter of the disk that is free without them."""
_ABANDONED_SECONDS = 3600
"""A file is written matrix by matrix, each in seconds. After this time its process is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A file of quantized matrices."""

    name: str
    model: str
    """The path of the model that was quantized. Empty if the file is damaged."""
    kind: str
    """The value of --quantize-on-load. Empty if the file is damaged."""
    num_bytes: int
    last_used: datetime


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    num_bytes: int
    modified: float


def models_folder() -> Path:
    """Return the folder, which may not exist. Raises BuildError if the user has no home."""
    return cache_folder() / "models"


def list_models() -> list[CachedModel]:
    """Describe all files that are finished. The last one was used last."""
    return [_describe(file) for file in _files(models_folder(), MADE)]


def remove_models(names: Collection[str] | None) -> None:
    """Remove files, or all for None, and what killed processes have left.

    Raises ConfigError, and removes none, if a name is not in the list.
    """
    folder = models_folder()
    found = {file.path.stem: file.path for file in _files(folder, MADE)}
    wanted = found if names is None else names
    for name in wanted:
        if name not in found:
            raise ConfigError(f"no cached model is called {name!r}{near_and_known(name, found)}")
    for name in wanted:
        try:
            found[name].unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"{found[name]} cannot be removed: {error.strerror}") from error
    _being_made(folder)


def choose_limit(folder: Path, stated: int | None) -> int:
    """Return the limit of all files together, in bytes. `stated` is --model-cache-size."""
    if stated is not None:
        return stated
    free = shutil.disk_usage(folder).free + sum(file.num_bytes for file in _files(folder, MADE))
    return min(_DEFAULT_LIMIT, free // _MAX_SHARE)


def make_room(folder: Path, num_bytes: int, limit: int) -> bool:
    """Remove the least recently used files until `num_bytes` more are within the limit.

    Files that are being made stay, and count with their final size. Returns False, and removes
    nothing, if the bytes cannot be within the limit.
    """
    room = limit - num_bytes - sum(file.num_bytes for file in _being_made(folder))
    if room < 0:
        return False
    made = _files(folder, MADE)
    excess = sum(file.num_bytes for file in made) - room
    for file in made:
        if excess <= 0:
            break
        file.path.unlink(missing_ok=True)
        excess -= file.num_bytes
    return True


def _being_made(folder: Path) -> list[_File]:
    """Return the files that processes write now. Files of killed processes are removed."""
    now, found = time.time(), []
    for file in _files(folder, BEING_MADE):
        if now - file.modified > _ABANDONED_SECONDS:
            file.path.unlink(missing_ok=True)
        else:
            found.append(file)
    return found


def _files(folder: Path, suffix: str) -> list[_File]:
    """Return files in the order of their last use, which is their time of modification."""
    found = []
    for path in folder.glob(f"*{suffix}"):
        try:
            status = path.stat()
        except FileNotFoundError:  # another process has removed it
            continue
        found.append(_File(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: file.modified)


def _describe(file: _File) -> CachedModel:
    try:
        with safe_open(file.path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
    except (SafetensorError, OSError):
        metadata = {}
    return CachedModel(
        name=file.path.stem,
        model=metadata.get("model", ""),
        kind=metadata.get("kind", ""),
        num_bytes=file.num_bytes,
        last_used=datetime.fromtimestamp(file.modified, UTC),
    )
