"""Builds the native CUDA library with the user's nvcc, once per version of torch and its sources.

The library uses torch's stable ABI, so one build works with every torch from 2.11 on, and it loads
even if torch has no CUDA. A library next to this file, built ahead of time, is preferred.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from ...core.interfaces import Progress
from ..machine.compiling import BuildError, build_once, run_compiler, run_compilers

SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "libtokenmill_cuda.so"
HEAD_SIZES = (64, 80, 96, 112, 128, 192, 256)
"""The head sizes of csrc/head_sizes.h."""

_USUAL_NVCC = "/usr/local/cuda/bin/nvcc"
_STAGE = "building the CUDA kernels"
_NEEDED = "CUDA 12.4 and a C++ compiler that it supports"
_OLDEST_TORCH = "0x020b000000000000"  # 2.11
_FLAGS = ["-std=c++20", "-O3", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
_BINDING_FLAGS = [
    "-std=c++20",
    "-O2",
    "-Xcompiler",
    "-fPIC,-fvisibility=hidden",
    f"-DTORCH_TARGET_VERSION={_OLDEST_TORCH}",
]


def build_library(progress: Progress, architectures: Sequence[str] | None = None) -> Path:
    """Return the library from the package or the cache, or build it, which takes half a minute.

    `architectures` are compute capabilities like "9.0". None: the ones in TORCH_CUDA_ARCH_LIST, or
    else those of this machine's GPUs. Builds of several processes wait for each other. Raises
    BuildError if nvcc is missing or fails, or the cache cannot be written.
    """
    if PREBUILT.exists() and architectures is None:
        return PREBUILT
    nvcc = find_nvcc()
    chosen = _choose_architectures(architectures)
    name = f"cuda-{_fingerprint(nvcc, chosen)}.so"
    return build_once(name, lambda folder: _build(nvcc, chosen, folder, progress))


def find_nvcc() -> str:
    """Return the path of nvcc. Raises BuildError if it is not found.

    $CUDACXX names it, or else it is looked up in $CUDA_HOME, in PATH and in /usr/local/cuda.
    """
    if sys.platform == "win32":
        raise BuildError("the native CUDA kernels do not build on Windows yet")
    named = os.environ.get("CUDACXX")
    home = os.environ.get("CUDA_HOME")
    places = [named] if named else [*([f"{home}/bin/nvcc"] if home else []), "nvcc", _USUAL_NVCC]
    for place in places:
        path = shutil.which(place)
        if path is not None:
            return path
    if named:
        raise BuildError(f"CUDACXX names the compiler {named!r}, which was not found")
    raise BuildError(
        "nvcc was not found and this installation has no compiled CUDA kernels: install the CUDA "
        "toolkit, or set CUDA_HOME or CUDACXX"
    )


def flags_of_kernels(head_size: int, architectures: Iterable[str]) -> list[str]:
    """Return nvcc's flags to compile csrc/paged_attention.cu for a head size."""
    return [*_FLAGS, f"-DHEAD_SIZE={head_size}", *map(_flag_of, architectures)]


def _flag_of(architecture: str) -> str:
    number = architecture.replace(".", "")
    return f"-gencode=arch=compute_{number},code=sm_{number}"


def _choose_architectures(asked: Sequence[str] | None) -> list[str]:
    if asked is None:
        listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
        asked = re.split(r"[;, ]+", listed.strip()) if listed else _architectures_here()
    plain = [one.removesuffix("+PTX") for one in asked]
    wrong = [one for one in plain if not re.fullmatch(r"\d+\.\d[af]?", one)]
    if wrong or not plain:
        raise BuildError(f"TORCH_CUDA_ARCH_LIST must be like '8.0;9.0', got {';'.join(asked)!r}")
    return sorted(set(plain))


def _architectures_here() -> list[str]:
    count = torch.cuda.device_count()
    if count == 0:
        raise BuildError("there is no GPU to build for: set TORCH_CUDA_ARCH_LIST, like '8.0;9.0'")
    pairs = [torch.cuda.get_device_capability(index) for index in range(count)]
    return [f"{major}.{minor}" for major, minor in pairs]


def _fingerprint(nvcc: str, architectures: Sequence[str]) -> str:
    """Return a hash of everything that the built library depends on."""
    version = run_compiler([nvcc, "--version"], _NEEDED)
    flags = repr([_FLAGS, _BINDING_FLAGS, HEAD_SIZES])
    parts = [torch.__version__, nvcc, version, flags, *architectures]
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(nvcc: str, architectures: Sequence[str], folder: Path, progress: Progress) -> Path:
    progress(_STAGE, 0.0)
    torch_folder = Path(torch.__file__).parent
    binding = folder / "binding.o"
    commands = [
        [
            *(nvcc, *_BINDING_FLAGS, f"-I{torch_folder / 'include'}"),
            *("-c", str(SOURCES / "binding.cpp"), "-o", str(binding)),
        ]
    ]
    kernels = {size: folder / f"{size}.o" for size in HEAD_SIZES}
    source = str(SOURCES / "paged_attention.cu")
    commands += [
        [nvcc, *flags_of_kernels(size, architectures), "-c", source, "-o", str(made)]
        for size, made in kernels.items()
    ]
    run_compilers(commands, _NEEDED, lambda done: progress(_STAGE, done / (len(commands) + 1)))
    library = folder / "library.so"
    objects = [str(binding), *map(str, kernels.values())]
    link = [nvcc, "-shared", "-cudart", "static", "-o", str(library), *objects]
    run_compiler([*link, f"-L{torch_folder / 'lib'}", "-ltorch_cpu"], _NEEDED)
    progress(_STAGE, 1.0)
    return library
