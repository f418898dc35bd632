"""Compiles kernels on the user's machine, once per version of their sources."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from ...core.errors import TokenmillError
from .threads import count_usable_cpus


class BuildError(TokenmillError):
    """A library could not be built or loaded; the message says why and what to do."""


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
    wait for each other, and the first one's result serves all. Raises BuildError when the cache
    cannot be read or written.
    """
    target = cache_folder() / name
    try:
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(target.with_suffix(".lock")):
            if not target.exists():
                with _empty_folder(target.with_suffix(".build")) as folder:
                    make(folder).replace(target)
    except OSError as error:
        raise BuildError(
            f"{target.parent} cannot be written: {error}; set XDG_CACHE_HOME"
        ) from error
    return target


def open_library(path: Path) -> ctypes.CDLL:
    """Load a shared library. Raises BuildError."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} cannot be loaded: {error}") from error


def run_compiler(command: Sequence[str], needed: str) -> str:
    """Run a command and return its output. Raises BuildError when it fails.

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

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the system releases it if this process dies
        yield
