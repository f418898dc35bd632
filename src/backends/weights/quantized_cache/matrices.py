"""The quantized matrices of one model: read from the cache, or made and added to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ....core.errors import TokenmillError
from ....core.log import get_logger
from ..checkpoint import Checkpoint
from ..formats.quantizing import QUANTIZER_VERSION
from ..packed import PackedWeights, Weights
from .file import Layout, Matrices, Reader, Writer, open_file
from .folder import MADE, choose_limit, make_room, models_folder

log = get_logger("model")

_FORMAT_VERSION = 2
"""Version of the files' layout."""
_DIGITS = 16
"""Digits of a hash in a name. The file's metadata has all of them."""

_MAX_HEADER = 1 << 27
"""Bytes of a header that are hashed at most."""


class CachedMatrices:
    """Reads or makes matrices. The cache never fails a start: what goes wrong is logged.

    A new file is put in its place after the last matrix was made.
    """

    def __init__(
        self, checkpoint: Checkpoint, kind: str, matrices: Matrices, limit: int | None
    ) -> None:
        """`matrices` of the checkpoint are quantized to `kind`.

        `limit`: maximum size of the whole cache in bytes; None: chosen by the free disk.
        """
        self._matrices = matrices
        self._reader: Reader | None = None
        self._writer: Writer | None = None
        self._seconds = 0.0
        try:
            files = checkpoint.files
            if not files or not matrices:
                return
            source = _hash_source(files, kind)
            metadata = {"model": _printable(checkpoint.path), "kind": kind, "source": source}
            name = f"{_plain(checkpoint.name)}-{kind}-{source[:_DIGITS]}"
            self._open(models_folder() / f"{name}{MADE}", Layout(matrices, metadata), limit)
        except (OSError, TokenmillError) as error:
            _log_not_cached(error)

    def matrix(self, name: str, make: Callable[[], Weights]) -> Weights:
        """Return a matrix from the cache, or else make it and add it to the cache."""
        if self._reader is not None and name in self._matrices:
            return self._reader.matrix(name)
        begin = time.perf_counter()
        made = make()
        self._seconds += time.perf_counter() - begin
        if self._writer is not None and name in self._matrices and isinstance(made, PackedWeights):
            self._add(self._writer, name, made)
        return made

    def release(self) -> None:
        if self._reader is not None:
            self._reader.release()

    def _open(self, path: Path, layout: Layout, limit: int | None) -> None:
        self._reader = open_file(path, layout)
        if self._reader is not None:
            log.info(
                "quantized_weights_read_from_cache",
                path=str(path),
                seconds_saved=round(self._reader.seconds_saved, 1),
            )
            with contextlib.suppress(OSError):  # a folder that cannot be written serves, too
                os.utime(path)
                make_room(path.parent, 0, choose_limit(path.parent, limit))
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        limit = choose_limit(path.parent, limit)
        if make_room(path.parent, layout.num_bytes, limit):
            self._writer = Writer(path, layout)
        else:
            _log_not_cached(
                f"{layout.num_bytes} bytes do not fit into {limit}", "--model-cache-size"
            )

    def _add(self, writer: Writer, name: str, made: PackedWeights) -> None:
        try:
            writer.add(name, made)
            if not writer.is_complete:
                return
            writer.finish(self._seconds)
            log.info(
                "quantized_weights_cached",
                path=str(writer.path),
                seconds=round(self._seconds, 1),
            )
        except OSError as error:
            _log_not_cached(error)
            writer.discard()
        self._writer = None


def _hash_source(files: Mapping[Path, int], kind: str) -> str:
    """Return a hash that changes with the model's files, the kind, and how it is quantized."""
    described: list[object] = [_FORMAT_VERSION, QUANTIZER_VERSION, kind]
    for path, header_bytes in sorted(files.items()):
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            header = hashlib.sha256(file.read(min(header_bytes, _MAX_HEADER))).hexdigest()
        described.append([os.fspath(path.resolve()), status.st_size, status.st_mtime_ns, header])
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _printable(path: Path) -> str:
    """Return a path as text that safetensors accepts, which must be UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def _plain(name: str) -> str:
    """Return a model's name as part of a file's name, and of an argument of a command."""
    return re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).lstrip(".-")[:64] or "model"


def _log_not_cached(reason: object, option: str = "XDG_CACHE_HOME") -> None:
    log.warning("quantized_weights_not_cached", reason=str(reason), option=option)
