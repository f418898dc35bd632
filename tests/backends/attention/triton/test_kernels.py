"""Every Triton kernel compiles for sm_90, without a GPU, and keeps its tiles in registers."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.attention.triton.ops import (
    OPTIONS,
    attend_constants,
    merge_constants,
    write_constants,
)
from tokenmill.backends.attention.triton.tiles import Tile, chunk_tile, decode_tile

pytestmark = [
    pytest.mark.check,
    pytest.mark.depends_on(),
    pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed"),
]

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SHARED_MEMORY = 99 << 10
"""Bytes of a program on the GPUs that have the fewest: compute capability 8.6 and 8.9."""
ANY_TILE = Tile(rows=16, keys=16, num_warps=4, num_stages=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def make_spec(dtype: str, head_size: int = 128, **changes: Any) -> AttentionSpec:
    return AttentionSpec(
        num_heads=32,
        num_kv_heads=8,
        head_size=head_size,
        block_size=16,
        dtype=DTYPES[dtype],
        device=torch.device("cuda"),
        scale=0.1,
        **changes,
    )


def compile_kernel(name: str, types: dict[str, str], constants: dict[str, Any], tile: Tile) -> Any:
    """As a launch does. Addresses and all strides but the block tables' are multiples of 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tokenmill.backends.attention.triton import kernels as triton_kernels

    kernel = getattr(triton_kernels, name)
    types = {n: "i32" for n in kernel.arg_names} | types
    signature = {n: "constexpr" if n in constants else types[n] for n in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(kernel.arg_names)
        if signature[n].startswith("*") or ("_stride_" in n and n not in constants)
    }
    return triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": tile.num_warps, "num_stages": tile.num_stages, **OPTIONS},
    )


def compile_attention(spec: AttentionSpec, dtype: str, *, is_decode: bool, is_split: bool) -> Any:
    tile = decode_tile(spec) if is_decode else chunk_tile(spec)
    constants = attend_constants(spec, tile, is_decode=is_decode, is_split=is_split)
    constants["tiles" if is_decode else "seq_lens"] = None
    if not is_split:
        constants |= {"partial_out": None, "partial_lse": None}
    pointers = dict.fromkeys(("q", "keys", "values", "out"), f"*{dtype}")
    pointers |= dict.fromkeys(("partial_out", "partial_lse"), "*fp32")
    pointers |= dict.fromkeys(("tiles", "seq_lens", "block_tables"), "*i32")
    return compile_kernel("attend_kernel", {**pointers, "score_scale": "fp32"}, constants, tile)


def stack_bytes(compiled: Any, folder: Path) -> int:
    """Local memory of a thread, where what the registers do not hold is spilled."""
    from triton import knobs

    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", listing)
    assert found is not None, listing
    return int(found[1])


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("is_decode", [False, True], ids=["chunks", "decodes"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_compiles(dtype: str, is_decode: bool, is_split: bool, tmp_path: Path) -> None:
    compiled = compile_attention(make_spec(dtype), dtype, is_decode=is_decode, is_split=is_split)
    assert compiled.metadata.shared <= SHARED_MEMORY
    assert stack_bytes(compiled, tmp_path) == 0
    has_tensor_cores = "mma" in compiled.asm["ptx"]
    assert has_tensor_cores == (dtype == "bf16"), "float32 is computed in float32"


@pytest.mark.parametrize("head_size", [64, 80, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_head_sizes_fit_too(dtype: str, head_size: int, tmp_path: Path) -> None:
    spec = make_spec(dtype, head_size)
    for is_decode in (False, True):
        compiled = compile_attention(spec, dtype, is_decode=is_decode, is_split=True)
        assert compiled.metadata.shared <= SHARED_MEMORY
        assert stack_bytes(compiled, tmp_path) == 0


def test_window_and_soft_cap_compile() -> None:
    spec = make_spec("bf16", sliding_window=100, logits_soft_cap=30.0)
    for is_decode in (False, True):
        assert compile_attention(spec, "bf16", is_decode=is_decode, is_split=True).asm["cubin"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_writing_and_merging_compile(dtype: str) -> None:
    spec = make_spec(dtype)
    pointers = dict.fromkeys(("k", "v", "keys", "values"), f"*{dtype}") | {"slots": "*i64"}
    assert compile_kernel("write_kv_kernel", pointers, write_constants(spec), ANY_TILE).asm["cubin"]
    pointers = {"partial_out": "*fp32", "partial_lse": "*fp32", "out": f"*{dtype}"}
    merged = compile_kernel("merge_splits_kernel", pointers, merge_constants(spec), ANY_TILE)
    assert merged.asm["cubin"]
