"""The CUDA kernels on the CPU: compiled as C++ with emulator.h, with the operators' names."""

from __future__ import annotations

import ctypes
import functools
import shutil
from pathlib import Path
from typing import Any

import torch

from tests.compiling import compile_once
from tokenmill.backends.cuda.build import SOURCES

HERE = Path(__file__).parent
EMULATED_SOURCES = (
    "src/backends/cuda/csrc",
    "tests/backends/cuda/emulated.cpp",
    "tests/backends/cuda/emulator.h",
)
"""What is compiled, relative to the repository."""
ELEMENTS = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
}
FLAGS = ["-std=c++20", "-O2", "-U_FORTIFY_SOURCE", "-fPIC", "-shared", "-w"]


class WriteCall(ctypes.Structure):
    """`WriteCall` of csrc/calls.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values", "slots", "kv_cache")),
        *((name, ctypes.c_int64) for name in ("num_tokens", "key_stride", "value_stride")),
        ("num_kv_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("element", ctypes.c_int32),
        ("cache_element", ctypes.c_int32),
    )


class AttentionCall(ctypes.Structure):
    """`AttentionCall` of csrc/calls.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "kv_cache", "out")),
        *((name, ctypes.c_int64) for name in ("query_stride", "out_stride")),
        *((name, ctypes.c_void_p) for name in ("block_tables", "query_start_loc", "seq_lens")),
        ("block_tables_stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("partial_sums", "partial_stats", "split_size")),
        ("max_splits", ctypes.c_int32),
        ("first_sequence", ctypes.c_int32),
        ("num_sequences", ctypes.c_int32),
        ("max_query_len", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("sliding_window", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("logits_soft_cap", ctypes.c_float),
        ("element", ctypes.c_int32),
        ("cache_element", ctypes.c_int32),
    )


class EmulatedOperators:
    """What csrc/binding.cpp offers, with tensors on the CPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.num_split_calls = 0
        """Calls in which contexts could be split."""

    def write_kv(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        kv_cache: torch.Tensor,
        stream: int,
    ) -> None:
        call = WriteCall(
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            slots=slots.data_ptr(),
            kv_cache=kv_cache.data_ptr(),
            num_tokens=slots.numel(),
            key_stride=keys.stride(0),
            value_stride=values.stride(0),
            num_kv_heads=kv_cache.shape[1],
            head_size=kv_cache.shape[4],
            block_size=kv_cache.shape[3],
            element=ELEMENTS[keys.dtype],
            cache_element=ELEMENTS[kv_cache.dtype],
        )
        self._run("write_kv", call, kv_cache.shape[4])

    def attend_decodes(
        self,
        queries: torch.Tensor,
        kv_cache: torch.Tensor,
        block_tables: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor,
        partial_sums: torch.Tensor,
        partial_stats: torch.Tensor,
        split_size: torch.Tensor,
        first_sequence: int,
        num_sequences: int,
        max_query_len: int,
        max_splits: int,
        *rules: float,
    ) -> None:
        call = make_call(
            *(queries, kv_cache, block_tables, query_start_loc, seq_lens, out),
            *(first_sequence, num_sequences, max_query_len, *rules),
        )
        call.max_splits = max_splits
        if max_splits > 1:
            self.num_split_calls += 1
            partial_sums.fill_(torch.nan)
            partial_stats.fill_(torch.nan)
            call.partial_sums = partial_sums.data_ptr()
            call.partial_stats = partial_stats.data_ptr()
            call.split_size = split_size.data_ptr()
        self._run("attend_decodes", call, call.head_size)

    def attend_prompts(
        self,
        queries: torch.Tensor,
        kv_cache: torch.Tensor,
        block_tables: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor,
        *numbers: float,
    ) -> None:
        call = make_call(
            *(queries, kv_cache, block_tables, query_start_loc, seq_lens, out), *numbers
        )
        self._run("attend_prompts", call, call.head_size)

    def round_to(self, kind: str, floats: torch.Tensor) -> torch.Tensor:
        """Float32 as codes of "e4m3" or "e5m2", uint8, by the kernels' arithmetic."""
        codes = torch.empty(floats.shape, dtype=torch.uint8)
        count = ctypes.c_int64(floats.numel())
        self._function(f"round_to_{kind}")(
            ctypes.c_void_p(floats.data_ptr()), ctypes.c_void_p(codes.data_ptr()), count
        )
        return codes

    def expand(
        self, kind: str, codes: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes, a multiple of four, as float32 one by one, and as fragments of `dtype`."""
        alone, in_pairs = torch.empty(codes.shape), torch.empty(codes.shape, dtype=dtype)
        name = {torch.float16: "half", torch.bfloat16: "bfloat16"}[dtype]
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (codes, alone, in_pairs)]
        self._function(f"expand_{kind}_{name}")(*pointers, ctypes.c_int64(codes.numel()))
        return alone, in_pairs

    def _function(self, name: str) -> Any:
        return getattr(_library(self._folder, 64), name)

    def _run(self, name: str, call: ctypes.Structure, head_size: int) -> None:
        function = getattr(_library(self._folder, head_size), name)
        function.restype = ctypes.c_char_p
        error = function(ctypes.byref(call))
        assert error is None, error.decode()


def make_call(
    queries: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    first_sequence: int,
    num_sequences: int,
    max_query_len: int,
    scale: float,
    sliding_window: int,
    logits_soft_cap: float,
    stream: int,
) -> AttentionCall:
    """As `make_call` of csrc/binding.cpp."""
    _, num_kv_heads, _, block_size, head_size = kv_cache.shape
    return AttentionCall(
        queries=queries.data_ptr(),
        kv_cache=kv_cache.data_ptr(),
        out=out.data_ptr(),
        query_stride=queries.stride(0),
        out_stride=out.stride(0),
        block_tables=block_tables.data_ptr(),
        query_start_loc=query_start_loc.data_ptr(),
        seq_lens=seq_lens.data_ptr(),
        block_tables_stride=block_tables.stride(0),
        max_splits=1,
        first_sequence=first_sequence,
        num_sequences=num_sequences,
        max_query_len=max_query_len,
        num_heads=queries.shape[1],
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        sliding_window=sliding_window,
        scale=scale,
        logits_soft_cap=logits_soft_cap,
        element=ELEMENTS[queries.dtype],
        cache_element=ELEMENTS[kv_cache.dtype],
    )


@functools.cache
def _library(folder: Path, head_size: int) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    assert compiler is not None
    command = [compiler, *FLAGS, f"-I{HERE}", f"-I{SOURCES}", f"-DHEAD_SIZE={head_size}"]
    library = compile_once(command, HERE / "emulated.cpp", [HERE, SOURCES], folder)
    return ctypes.CDLL(str(library.path))
