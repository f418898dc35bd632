"""Builds the native CPU libraries with the user's compiler, once per version of their sources.

Each instruction set has its own library, built from the same sources, so that a process never maps
code for another CPU. On a user's machine only the library for its CPU is compiled; a wheel may
contain all. A library is compiled for an instruction set, not for "this machine": it runs on every
CPU that has the set.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ....core.interfaces import Progress, no_progress
from ...machine.compiling import BuildError, build_once, run_compiler, run_compilers
from .architectures import OLDEST_COMPILERS, architecture_of

SOURCES = Path(__file__).parents[1] / "csrc"
PREBUILT = Path(__file__).parents[1] / "prebuilt"
"""The folder of a wheel that contains compiled libraries and programs."""

_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-w",  # g++ 12 warns that its own AVX-512 intrinsics use uninitialized values
)
_APART = ("features", "self_test")
"""Folders of sources that are not part of the libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A library or program that is built from the sources."""

    name: str
    """The file name in a wheel."""
    folders: tuple[str, ...]
    """Folders of its sources; empty: all folders except those of other products."""
    flags: tuple[str, ...] = ()
    """Compiler flags in addition to the flags of every product."""
    compilers: str = OLDEST_COMPILERS
    """The oldest compilers that know the flags."""
    is_program: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A compiler and its target architecture."""

    compiler: str
    machine: str


_PROBE = Product(name="libtokenmill_cpu_probe.so", folders=("features",))
_SELF_TEST = Product(
    name="tokenmill_cpu_self_test", folders=("self_test", "features", "formats"), is_program=True
)


def build_library(instruction_set: str, progress: Progress) -> Path:
    """Path of the library for an instruction set of this machine's architecture.

    It comes from the package or the cache, or is built now, which takes seconds. If several
    processes build at the same time, one builds and the others wait for its result. Raises
    BuildError if there is no compiler, if it fails, or if the cache cannot be written.
    """
    stage = f"compiling CPU kernels for {instruction_set}"
    return _build(library_for(instruction_set), stage, progress)


def build_probe() -> Path:
    """Path of the library that reports which instruction sets this CPU runs.

    Raises as `build_library`.
    """
    return _build(_PROBE, "", no_progress)


def build_self_test(progress: Progress) -> Path:
    """Path of the program that tests a library. Raises as `build_library`."""
    return _build(_SELF_TEST, "compiling the CPU self-test", progress)


def build_all(progress: Progress) -> dict[str, Path]:
    """Build everything that a wheel for this architecture contains: paths by file name.

    Raises as `build_library`.
    """
    return {one.name: _build(one, f"compiling {one.name}", progress) for one in products()}


def library_for(instruction_set: str, machine: str | None = None) -> Product:
    """The library for an instruction set of an architecture, as a product to build."""
    one = architecture_of(machine).sets[instruction_set]
    return Product(
        name=f"libtokenmill_cpu_{instruction_set}.so",
        folders=(),
        flags=(*one.flags, f'-DTM_INSTRUCTION_SET="{instruction_set}"'),
        compilers=one.compilers,
    )


def products(machine: str | None = None) -> tuple[Product, ...]:
    """All products that CPUs of an architecture may need; by default this machine's."""
    libraries = (library_for(name, machine) for name in architecture_of(machine).sets)
    return _PROBE, *libraries, _SELF_TEST


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


def compile_product(
    product: Product, toolchain: Toolchain, folder: Path, stage: str, progress: Progress
) -> Path:
    """Compile and link a product into `folder`, and return its path. Raises BuildError."""
    progress(stage, 0.0)
    sources = _sources_of(product)
    objects = [folder / f"{source.parent.name}_{source.stem}.o" for source in sources]
    commands = [
        [
            toolchain.compiler,
            *_flags_for(product, toolchain, source),
            "-c",
            str(source),
            "-o",
            str(made),
        ]
        for source, made in zip(sources, objects, strict=True)
    ]
    needed = product.compilers
    run_compilers(commands, needed, lambda done: progress(stage, done / (len(commands) + 1)))
    made = folder / product.name
    run_compiler(
        [toolchain.compiler, *_link_flags(product), "-o", str(made), *map(str, objects)], needed
    )
    progress(stage, 1.0)
    return made


def _build(product: Product, stage: str, progress: Progress) -> Path:
    prebuilt = PREBUILT / product.name
    if prebuilt.exists():
        return prebuilt
    toolchain = Toolchain(compiler=find_compiler(), machine=platform.machine())
    stem, dot, ending = product.name.partition(".")
    name = f"{stem}-{_fingerprint(product, toolchain)}{dot}{ending}"
    return build_once(
        name, lambda folder: compile_product(product, toolchain, folder, stage, progress)
    )


def _fingerprint(product: Product, toolchain: Toolchain) -> str:
    """A hash of everything that the built file depends on."""
    flags = _general_flags(toolchain)
    parts = [repr(toolchain), _version_of(toolchain.compiler), repr(flags), repr(product)]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(f"\0{path.relative_to(SOURCES)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _version_of(compiler: str) -> str:
    return run_compiler([compiler, "--version"], OLDEST_COMPILERS)


def _sources_of(product: Product) -> list[Path]:
    """The product's sources. Kernels come first, because they take longest to compile."""
    rooms = ((path, path.relative_to(SOURCES).parts[0]) for path in SOURCES.rglob("*.cpp"))
    found = [
        path
        for path, room in rooms
        if (room in product.folders if product.folders else room not in _APART)
    ]
    if product.is_program:  # probe.cpp is the interface of the probe library only
        found = [path for path in found if path.stem != "probe"]
    return sorted(found, key=lambda path: (not _has_kernels(path), path))


def _has_kernels(source: Path) -> bool:
    return source.stem.endswith("kernels")


def _general_flags(toolchain: Toolchain) -> tuple[str, ...]:
    return (*_FLAGS, *architecture_of(toolchain.machine).flags)


def _flags_for(product: Product, toolchain: Toolchain, source: Path) -> list[str]:
    # Kernels are precise enough with or without contraction. Elsewhere each rounding matters:
    # unpacked weights must be exactly those of the file, and draws must equal Python's.
    contraction = "fast" if _has_kernels(source) else "off"
    flags = [*_general_flags(toolchain), *product.flags, f"-ffp-contract={contraction}"]
    return [*flags, f"-I{SOURCES}"]


def _link_flags(product: Product) -> list[str]:
    if product.is_program:
        return ["-pthread", "-ldl"]
    # Without this, templates of the standard library that were compiled for one instruction set
    # could replace those of another library in the same process.
    exports = [f"-Wl,--version-script={SOURCES / 'exports.map'}"] if sys.platform == "linux" else []
    return ["-shared", "-pthread", *exports]
