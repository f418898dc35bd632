"""Builds the native CPU library with the user's compiler, once per version of its sources.

The library chooses its instruction set when it is loaded, so each file is compiled for the one that
its name ends in (`kernels_avx2.cpp`), never for "this machine": the result runs anywhere of the
same architecture, and its place in the cache does not depend on the CPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from ...core.errors import TokenmillError
from ...core.interfaces import Progress

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "libtokenmill_cpu.so"

_STAGE = "building the CPU kernels"
_FLAGS = [
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-w",  # g++ 12 takes its own AVX-512 intrinsics for uninitialized
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [
    *_AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
]
_X86_TARGETS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512bf16": [*_AVX512, "-mavx512bf16"],
}


class BuildError(TokenmillError):
    """The library could not be built; the message says why and what would help."""


def build_library(progress: Progress) -> Path:
    """The built library, from the package or the cache, or built now (seconds).

    Builds of several processes wait for each other; the first one's result serves all. Raises
    BuildError without a compiler, when it fails, or when the cache cannot be written.
    """
    if PREBUILT.exists():
        return PREBUILT
    compiler = find_compiler()
    sources = sorted(SOURCES.glob("*.cpp"))
    target = _cache_folder() / f"cpu-{_fingerprint(compiler)}.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _lock(target.with_suffix(".lock")):
            if not target.exists():
                _build(compiler, sources, target, progress)
    except OSError as error:
        raise BuildError(
            f"{target.parent} cannot be written: {error}; set XDG_CACHE_HOME"
        ) from error
    return target


def find_compiler() -> str:
    """Path of $CXX, g++, clang++ or c++, whichever is found first. Raises BuildError."""
    if sys.platform == "win32":
        raise BuildError("the native CPU kernels do not build on Windows yet")
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is not None:
            return path
    if named:
        raise BuildError(f"the compiler that CXX names, {named!r}, was not found")
    raise BuildError("no C++ compiler was found: install g++ or clang++, or name one in CXX")


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "tokenmill"


def _fingerprint(compiler: str) -> str:
    """Of everything that the result depends on."""
    version = _run([compiler, "--version"])
    parts = [compiler, version, platform.machine(), repr(_FLAGS), repr(_X86_TARGETS)]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, sources: Sequence[Path], target: Path, progress: Progress) -> None:
    progress(_STAGE, 0.0)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder) / f"{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            jobs = [
                pool.submit(
                    _run, [compiler, *_flags_of(source), "-c", str(source), "-o", str(made)]
                )
                for source, made in zip(sources, objects, strict=True)
            ]
            for done, job in enumerate(as_completed(jobs), start=1):
                job.result()
                progress(_STAGE, done / (len(jobs) + 1))
        library = Path(folder) / target.name
        _run([compiler, "-shared", "-pthread", "-o", str(library), *map(str, objects)])
        library.replace(target)
    progress(_STAGE, 1.0)


def _flags_of(source: Path) -> list[str]:
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    suffix = source.stem.rpartition("_")[2]
    return [*_FLAGS, "-pthread", *(_X86_TARGETS.get(suffix, []) if is_x86 else [])]


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        what = errors[0] if errors else f"exit status {done.returncode}"
        raise BuildError(f"{command[0]} failed (g++ 10 or clang++ 9 at least is needed): {what}")
    return done.stdout


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl  # not on Windows, where find_compiler already refused

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the system lets go of it if this process dies
        yield
