"""Loads the native CPU library and declares the signatures of its functions."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from ....core.errors import ConfigError
from ....core.interfaces import Progress, no_progress
from ....core.log import get_logger
from ...machine.compiling import BuildError, CacheError, open_library
from ...machine.threads import place_threads
from . import instruction_sets
from .build import build_library
from .handshake import check_structures
from .self_test import failure_of
from .structures import LinearCallStruct, PackedLinearStruct, WeightRowsStruct

log = get_logger("model")

_ABI_VERSION = 11


class Layout(IntEnum):
    """The layout of packed weights: `Layout` of csrc/linear/linear.h, which describes each."""

    F32 = 0
    BF16 = 1
    BLOCKS4 = 2
    BLOCKS5 = 3
    BYTES = 4
    SUPER4 = 5
    SUPER5 = 6
    SIX = 7
    E2M1 = 8
    IQ4 = 9
    SUPER_IQ4 = 10
    THREE = 11
    TWO = 12
    F16 = 13


class Source(IntEnum):
    """The format of a matrix before it is packed: `Source` of csrc/formats/sources.h."""

    F32 = 0
    BF16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 4
    Q5_1 = 5
    Q8_0 = 6
    IQ4_NL = 7
    MXFP4 = 8
    Q3_K = 9
    Q4_K = 10
    Q5_K = 11
    Q6_K = 12
    IQ4_XS = 13
    Q2_K = 14
    F16 = 15


class Activation(IntEnum):
    """The activation of a gate: `Activation` of csrc/linear/linear.h."""

    SILU = 0
    GELU = 1
    """Its approximation by tanh."""


class InputPrecision(IntEnum):
    """The precision of the inputs of a product with quantized weights: `InputPrecision` of
    csrc/linear/linear.h."""

    INT8 = 0
    FLOAT = 1
    TWO_INT8 = 2
    """The sum of two int8 numbers, which keeps 15 bits."""


class Element(IntEnum):
    """The number type of results: `Element` of csrc/linear/linear.h."""

    F32 = 0
    BF16 = 1


class Status(IntEnum):
    """Return value of library functions that may fail: `Status` of csrc/abi/c_abi.h."""

    DONE = 0
    OUT_OF_MEMORY = 1
    FAILED = 2

    @classmethod
    def check(cls, status: int, what: str) -> None:
        """Raise MemoryError or ValueError unless the status is DONE. `what` names the work."""
        if status == cls.OUT_OF_MEMORY:
            raise MemoryError(f"not enough memory for {what}")
        if status != cls.DONE:
            raise ValueError(f"{what} failed")


class Library:
    """A loaded native library.

    Calls that compute release the GIL. Calls from several threads run one after the other. Each
    loaded library has its own threads.
    """

    def __init__(self, path: Path) -> None:
        """Load a library. Raises BuildError if it cannot be loaded or has another version."""
        library = open_library(path)
        found = library.tm_abi_version()
        if found != _ABI_VERSION:
            raise BuildError(f"{path} has interface {found}, not {_ABI_VERSION}: build it again")
        check_structures(library)
        self._library = library
        self._brief_library = ctypes.PyDLL(str(path))
        weights, rows = ctypes.POINTER(PackedLinearStruct), ctypes.POINTER(WeightRowsStruct)
        self._packed_bytes = self.function("tm_packed_bytes", ctypes.c_int64, weights)
        self._pack = self.function("tm_pack", ctypes.c_int, weights, rows, ctypes.c_void_p)
        self._unpack = self.function("tm_unpack", ctypes.c_int, weights, ctypes.c_void_p)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._look_up = self.function(
            "tm_look_up", ctypes.c_int, weights, pointer, number, pointer, ctypes.c_int
        )
        self._num_threads = self.function("tm_num_threads", ctypes.c_int)
        cpus = ctypes.POINTER(ctypes.c_int)
        self._set_threads = self.function("tm_set_threads", ctypes.c_int, ctypes.c_int, cpus)
        name: bytes = self.function("tm_instruction_set", ctypes.c_char_p)()
        self.instruction_set = name.decode()
        """The instruction set that the library is compiled for."""
        self.linear = self.computing("tm_linear", "a product", LinearCallStruct)
        """Runs one product; takes `ctypes.byref` of a LinearCallStruct."""

    def function(
        self, name: str, result: type[object] | None, *arguments: type[object]
    ) -> Callable[..., Any]:
        """A function of the C interface, declared with its types. Calls release the GIL."""
        return _declare(self._library, name, result, *arguments)

    def brief_function(
        self, name: str, result: type[object] | None, *arguments: type[object]
    ) -> Callable[..., Any]:
        """Like `function`, for calls that take microseconds. They keep the GIL.

        If such a call released the GIL between two steps, the event loop would deliver a whole step
        before the next one begins.
        """
        return _declare(self._brief_library, name, result, *arguments)

    def computing(self, name: str, what: str, *arguments: type[Any]) -> Callable[..., None]:
        """A function of the C interface that returns a status.

        Its arguments are structures by reference and numbers. The callable checks the status: it
        raises MemoryError, which names `what`, if the library has too little memory.
        """
        function = self.function(
            name,
            ctypes.c_int,
            *(
                ctypes.POINTER(one) if issubclass(one, ctypes.Structure) else one
                for one in arguments
            ),
        )

        def compute(*values: object) -> None:
            status = function(*values)
            if status:
                Status.check(status, what)

        return compute

    @property
    def suits_this_cpu(self) -> bool:
        """Whether the kernels are made for this CPU's instruction set.

        Portable kernels are not, unless TOKENMILL_CPU_ISA names them.
        """
        is_asked_for = os.environ.get(instruction_sets.VARIABLE) == "portable"
        return self.instruction_set != "portable" or is_asked_for

    @property
    def num_threads(self) -> int:
        """Number of threads that compute, the calling thread included."""
        return int(self._num_threads())

    def set_threads(self, num_threads: int | None = None) -> None:
        """Set the number of threads; None: one per physical core (see machine/threads.py).

        Raises ConfigError for less than one thread or more than the system allows, MemoryError.
        """
        if num_threads is not None and num_threads < 1:
            raise ConfigError(f"the number of CPU threads must be at least 1, got {num_threads}")
        placement = place_threads(num_threads)
        cpus = placement.cpus
        array = None if cpus is None else (ctypes.c_int * len(cpus))(*cpus)
        status = self._set_threads(placement.num_threads, array)
        Status.check(status, f"{placement.num_threads} threads")
        if self.num_threads < placement.num_threads:
            raise ConfigError(
                f"the system allows this process only {self.num_threads} of "
                f"{placement.num_threads} CPU threads: raise its limits or ask for fewer"
            )

    def packed_bytes(self, weights: PackedLinearStruct) -> int:
        """Size of the packed weights, in bytes."""
        return int(self._packed_bytes(ctypes.byref(weights)))

    def pack(self, weights: PackedLinearStruct, rows: WeightRowsStruct) -> None:
        """Write `rows` to `weights.data` in the packed layout."""
        status = self._pack(ctypes.byref(weights), ctypes.byref(rows), weights.data)
        Status.check(status, "packing weights")

    def unpack(self, weights: PackedLinearStruct, out: int) -> None:
        """Write the packed weights as float32 [n, k] to the address `out`."""
        Status.check(self._unpack(ctypes.byref(weights), out), "unpacking weights")

    def look_up(
        self, weights: PackedLinearStruct, rows: int, count: int, out: int, element: Element
    ) -> None:
        """Write rows of packed weights to the address `out`, as numbers of a type.

        `rows` is the address of their `count` numbers, int64.
        """
        status = self._look_up(ctypes.byref(weights), rows, count, out, element)
        Status.check(status, "rows of weights")


_loading = threading.Lock()
_loaded: dict[str, Library] = {}
"""Libraries by the chosen instruction set: one, unless TOKENMILL_CPU_ISA changes meanwhile."""
_failed: BuildError | None = None
"""The first failure to build a library. The compiler is not called again after it."""


def load_library(progress: Progress = no_progress) -> Library:
    """The library for this CPU or for the instruction set in TOKENMILL_CPU_ISA.

    It is built if necessary. It computes with one thread per physical core, or fewer if torch has
    fewer. A library that is new on this CPU is first tested in a child process (see self_test.py).
    If it fails, the library of the next lower instruction set is used.

    Raises BuildError if no library can be built or passes, ConfigError for a wrong instruction set.
    """
    global _failed
    with _loading:
        if _failed is not None:
            raise _failed
        try:
            sets = instruction_sets.choose_sets()
            if sets[0] not in _loaded:
                _loaded[sets[0]] = _load_first(sets, progress)
        except BuildError as error:
            _failed = error
            log.warning("cpu_kernels_not_built", error=str(error), instead="torch")
            raise
        return _loaded[sets[0]]


def _load_first(sets: tuple[str, ...], progress: Progress) -> Library:
    """Load the first library that can be built and passes its self-test.

    An old compiler may not know the best instruction set.
    """
    not_built: BuildError | None = None
    failure = None
    for name, lower in zip(sets, (*sets[1:], None), strict=True):
        try:
            path = build_library(name, progress)
            failure = failure_of(path, progress)
        except CacheError:
            raise  # the next one has no room either
        except BuildError as error:
            not_built = not_built or error
            continue
        if failure is None:
            if not_built is not None:
                log.warning("cpu_kernels_not_built", error=str(not_built), instead=name)
            library = Library(path)
            library.set_threads(min(place_threads().num_threads, torch.get_num_threads()))
            return library
        log.warning("cpu_kernels_are_wrong", instruction_set=name, found=failure, instead=lower)
    raise not_built or BuildError(f"the CPU kernels fail their self-test here: {failure}")


def _declare(
    library: ctypes.CDLL, name: str, result: type[object] | None, *arguments: type[object]
) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype = result
    function.argtypes = arguments
    declared: Callable[..., Any] = function
    return declared
