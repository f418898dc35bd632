"""The native CPU library as Python sees it: every signature and shared structure is here."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from ...core.errors import ConfigError
from ...core.interfaces import Progress
from .build import BuildError, build_library
from .threads import place_threads

_ABI_VERSION = 3
_INSTRUCTION_SET_VARIABLE = "TOKENMILL_CPU_ISA"


class Format(IntEnum):
    """How weights are kept: `Format` of csrc/kernels.h."""

    F32 = 0
    BF16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 4


class Element(IntEnum):
    """What results are written in: `Element` of csrc/kernels.h."""

    F32 = 0
    BF16 = 1


class Status(IntEnum):
    """What functions return that may fail: `Status` of csrc/c_abi.h."""

    DONE = 0
    OUT_OF_MEMORY = 1
    FAILED = 2

    @classmethod
    def check(cls, status: int, what: str) -> None:
        """Raise MemoryError or ValueError unless it is done; `what` was being done."""
        if status == cls.OUT_OF_MEMORY:
            raise MemoryError(f"there is no memory for {what}")
        if status != cls.DONE:
            raise ValueError(f"{what} failed")


class PackedLinearStruct(ctypes.Structure):
    """`PackedLinear` of csrc/kernels.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("format", ctypes.c_int32),
        ("gate_up", ctypes.c_int32),
    )


class LinearCallStruct(ctypes.Structure):
    """`LinearCall` of csrc/kernels.h."""

    _fields_ = (
        ("weights", ctypes.POINTER(PackedLinearStruct)),
        ("x", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("out_type", ctypes.c_int32),
        ("add_to_out", ctypes.c_int32),
    )


class WeightRowsStruct(ctypes.Structure):
    """`WeightRows` of csrc/packing.h."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("up_rows", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
    )


class Library:
    """The loaded library. Calls that compute release the GIL, and run in turn if several threads
    make them."""

    def __init__(self, path: Path) -> None:
        """Load it. Raises BuildError when it cannot be loaded or is of another version."""
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"{path} cannot be loaded: {error}") from error
        found = library.tm_abi_version()
        if found != _ABI_VERSION:
            raise BuildError(f"{path} has interface {found}, not {_ABI_VERSION}: build it anew")
        self._library = library
        self._brief_library = ctypes.PyDLL(str(path))
        declare = functools.partial(_declare, library)
        weights = ctypes.POINTER(PackedLinearStruct)
        calls = ctypes.POINTER(LinearCallStruct)
        rows = ctypes.POINTER(WeightRowsStruct)
        cpus = ctypes.POINTER(ctypes.c_int)
        declare("tm_instruction_sets", ctypes.c_char_p)
        declare("tm_instruction_set", ctypes.c_char_p)
        declare("tm_use_instruction_set", ctypes.c_int, ctypes.c_char_p)
        declare("tm_set_threads", ctypes.c_int, ctypes.c_int, cpus)
        declare("tm_num_threads", ctypes.c_int)
        declare("tm_packed_bytes", ctypes.c_int64, weights)
        declare("tm_pack", None, weights, rows, ctypes.c_void_p)
        declare("tm_unpack", None, weights, ctypes.c_void_p)
        declare("tm_linear", None, calls)
        self.linear: Callable[[object], None] = library.tm_linear
        """Runs one product; takes `ctypes.byref` of a LinearCallStruct."""

    def function(
        self, name: str, result: type[object] | None, *arguments: type[object]
    ) -> Callable[..., Any]:
        """A function of the C interface with its signature."""
        return _declare(self._library, name, result, *arguments)

    def brief_function(
        self, name: str, result: type[object] | None, *arguments: type[object]
    ) -> Callable[..., Any]:
        """As `function`, for calls of microseconds: they keep the GIL. To release it once between
        two steps is to let the event loop deliver a whole step before the next one begins."""
        return _declare(self._brief_library, name, result, *arguments)

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """Those that this CPU runs, best first."""
        names: bytes = self._library.tm_instruction_sets()
        return tuple(names.decode().split(","))

    @property
    def instruction_set(self) -> str:
        """The one in use."""
        name: bytes = self._library.tm_instruction_set()
        return name.decode()

    @property
    def suits_this_cpu(self) -> bool:
        """False for the portable kernels, unless TOKENMILL_CPU_ISA asks for them by name."""
        is_asked_for = os.environ.get(_INSTRUCTION_SET_VARIABLE) == "portable"
        return self.instruction_set != "portable" or is_asked_for

    def use_instruction_set(self, name: str) -> None:
        """Change it. Raises ConfigError for one that this CPU does not run."""
        if not self._library.tm_use_instruction_set(name.encode()):
            known = ", ".join(self.instruction_sets)
            raise ConfigError(f"instruction set {name!r} is not available here: {known}")

    @property
    def num_threads(self) -> int:
        """Threads that compute, the caller's own included."""
        return int(self._library.tm_num_threads())

    def set_threads(self, num_threads: int | None = None) -> None:
        """Compute on that many threads; None: one per physical core (see threads.py).

        Raises ConfigError for less than one, or more than the system gives; MemoryError.
        """
        if num_threads is not None and num_threads < 1:
            raise ConfigError(f"the number of CPU threads must be at least 1, got {num_threads}")
        placement = place_threads(num_threads)
        cpus = placement.cpus
        array = None if cpus is None else (ctypes.c_int * len(cpus))(*cpus)
        status = self._library.tm_set_threads(placement.num_threads, array)
        Status.check(status, f"{placement.num_threads} threads")
        if self.num_threads < placement.num_threads:
            raise ConfigError(
                f"the system gives this process {self.num_threads} CPU threads of the "
                f"{placement.num_threads} that are wanted: raise its limits, or ask for fewer"
            )

    def packed_bytes(self, weights: PackedLinearStruct) -> int:
        """Bytes that the packed form takes."""
        return int(self._library.tm_packed_bytes(ctypes.byref(weights)))

    def pack(self, weights: PackedLinearStruct, rows: WeightRowsStruct) -> None:
        """Write `rows` to `weights.data` in the packed layout."""
        self._library.tm_pack(ctypes.byref(weights), ctypes.byref(rows), weights.data)

    def unpack(self, weights: PackedLinearStruct, out: int) -> None:
        """Write float32 [n, k] to the address `out`."""
        self._library.tm_unpack(ctypes.byref(weights), out)


_loading = threading.Lock()
_loaded: Library | None = None
_failed: BuildError | None = None
"""Why there is none: a compiler that failed once is not asked again."""


def load_library(progress: Progress | None = None) -> Library:
    """The library, built if need be; one per process. TOKENMILL_CPU_ISA names its instruction set.

    It computes with one thread per physical core, or fewer if torch was given fewer before.

    Raises BuildError where there is none to be had, ConfigError for a wrong instruction set.
    """
    global _loaded, _failed
    with _loading:
        if _failed is not None:
            raise _failed
        if _loaded is None:
            try:
                library = Library(build_library(progress or _ignore))
            except BuildError as error:
                _failed = error
                raise
            name = os.environ.get(_INSTRUCTION_SET_VARIABLE)
            if name:
                library.use_instruction_set(name)
            library.set_threads(min(place_threads().num_threads, torch.get_num_threads()))
            _loaded = library
        return _loaded


def _declare(
    library: ctypes.CDLL, name: str, result: type[object] | None, *arguments: type[object]
) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments
    declared: Callable[..., Any] = function
    return declared


def _ignore(stage: str, part: float) -> None:
    """Progress that nobody watches."""
