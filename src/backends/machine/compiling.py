"""Compiles kernels on the user's machine, once per version of their sources."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from ...core.errors import TokenmillError
from ...core.log import get_logger
from .threads import count_usable_cpus

log = get_logger("model")

BUILD_BYTES = 1 << 25
"""Room that a build needs in the cache: a library of CPU kernels has 3 MB, its objects 6 MB."""
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""Texts with which compilers say that there is no room."""


class BuildError(TokenmillError):
    """A library could not be built or loaded; the message says why and what to do."""


class CacheError(BuildError):
    """The user's cache cannot be read or written, so it is no use to build something else there."""


def cache_folder() -> Path:
    """Return the folder of what tokenmill makes once for this user, which may not exist yet.

    Raises BuildError if the user has no home directory.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "tokenmill"
    except RuntimeError as error:
        raise BuildError(f"there is no place for a cache: {error} Set XDG_CACHE_HOME") from error


def build_once(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the file `name` in the user's cache; if it is missing, build it with `make`.

    `make` gets an empty folder and returns the built file in it. Processes that build the same file
    wait for each other, and the first one's result serves all. A file that is not as it was built,
    for example because the machine lost power, is built again. Raises CacheError when the cache
    cannot be read or written or is full.
    """
    target = cache_folder() / name
    lock = target.with_suffix(".lock")
    try:
        if _is_intact(target, lock):
            return target
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(lock):
            if not _is_intact(target, lock):
                if target.exists():
                    log.warning("cached_file_is_damaged", path=str(target), action="built again")
                _check_room(target.parent)
                with _empty_folder(target.with_suffix(".build")) as folder:
                    made = make(folder)
                    lock.write_text(_checksum(made))
                    made.replace(target)
    except OSError as error:
        raise CacheError(
            f"{target.parent} cannot be written: {error}; set XDG_CACHE_HOME"
        ) from error
    return target


def _is_intact(target: Path, lock: Path) -> bool:
    """Whether a file was built, and has the checksum that its lock notes. Loading a shortened
    library would end this process."""
    try:
        return _checksum(target).encode() == lock.read_bytes()
    except FileNotFoundError:
        return False


def _check_room(folder: Path) -> None:
    """Raise CacheError if there is too little room: compilers note it only after their work."""
    free = shutil.disk_usage(folder).free
    if free < BUILD_BYTES:
        raise CacheError(
            f"{folder} has {free >> 20} MB of free space; a build needs {BUILD_BYTES >> 20} MB: "
            "free some, or set XDG_CACHE_HOME"
        )


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_library(path: Path) -> ctypes.CDLL:
    """Load a shared library. Raises BuildError."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from error


def run_compiler(command: Sequence[str], needed: str) -> str:
    """Run a command and return its output. Raises BuildError when it fails, or CacheError if it has
    no room for its result.

    `needed` names the oldest versions that work, for the error message.
    """
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            # Messages in English: errors are found by that word, and `--version` is part of names.
            env={**os.environ, "LC_ALL": "C"},
            encoding="utf-8",
            errors="replace",
            timeout=600,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        what = errors[0] if errors else f"exit status {done.returncode}"
        if any(text in line for text in _FULL for line in lines):
            raise CacheError(f"{command[0]} has no room for its result ({what}): free some space")
        raise BuildError(f"{command[0]} failed (the kernels need at least {needed}): {what}")
    return done.stdout


def run_compilers(
    commands: Sequence[Sequence[str]], needed: str, done_one: Callable[[int], None]
) -> None:
    """Run commands concurrently, one per usable CPU. Raises BuildError when one fails.

    Then no other command is started. `done_one` is called after each command, with the number of
    finished commands.
    """
    pool = ThreadPoolExecutor(count_usable_cpus())
    try:
        jobs = [pool.submit(run_compiler, command, needed) for command in commands]
        for done, job in enumerate(as_completed(jobs), start=1):
            job.result()
            done_one(done)
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _empty_folder(path: Path) -> Iterator[Path]:
    """A new folder that is removed at the end, or by the next build if this process is killed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl  # Windows lacks it, but nothing is built there

    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the system releases it if this process dies
        yield
