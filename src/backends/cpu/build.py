"""Builds the native CPU library with the user's compiler, once per version of its sources.

The library chooses its instruction set when it is loaded, so each file is compiled for the one that
its name ends in (`kernels_avx2.cpp`), never for "this machine": the result runs anywhere of the
same architecture, and its place in the cache does not depend on the CPU.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from pathlib import Path

from ...core.interfaces import Progress
from ..machine.compiling import BuildError, build_once, run_compiler, run_compilers

__all__ = ["PREBUILT", "SOURCES", "BuildError", "build_library", "find_compiler"]

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "libtokenmill_cpu.so"

_STAGE = "building the CPU kernels"
_NEEDED = "g++ 10 or clang++ 9"
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


def build_library(progress: Progress) -> Path:
    """The built library, from the package or the cache, or built now (seconds).

    Builds of several processes wait for each other; the first one's result serves all. Raises
    BuildError without a compiler, when it fails, or when the cache cannot be written.
    """
    if PREBUILT.exists():
        return PREBUILT
    compiler = find_compiler()
    name = f"cpu-{_fingerprint(compiler)}.so"
    return build_once(name, lambda folder: _build(compiler, folder, progress))


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


def _fingerprint(compiler: str) -> str:
    """Of everything that the result depends on."""
    version = run_compiler([compiler, "--version"], _NEEDED)
    parts = [compiler, version, platform.machine(), repr(_FLAGS), repr(_X86_TARGETS)]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(compiler: str, folder: Path, progress: Progress) -> Path:
    progress(_STAGE, 0.0)
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [folder / f"{source.stem}.o" for source in sources]
    commands = [
        [compiler, *_flags_of(source), "-c", str(source), "-o", str(made)]
        for source, made in zip(sources, objects, strict=True)
    ]
    run_compilers(commands, _NEEDED, lambda done: progress(_STAGE, done / (len(commands) + 1)))
    library = folder / "library.so"
    link = [compiler, "-shared", "-pthread", "-o", str(library), *map(str, objects)]
    run_compiler(link, _NEEDED)
    progress(_STAGE, 1.0)
    return library


def _flags_of(source: Path) -> list[str]:
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    suffix = source.stem.rpartition("_")[2]
    return [*_FLAGS, "-pthread", *(_X86_TARGETS.get(suffix, []) if is_x86 else [])]
