"""Norms, activations, embeddings and rotation of the native library, against float64 and torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tokenmill.backends.cpu.attention_ops import (
    ActivateCallStruct,
    Activation,
    AttentionOps,
    AttentionSpecStruct,
    EmbedCallStruct,
    RmsNormCallStruct,
    RotateAndWriteCallStruct,
)
from tokenmill.backends.cpu.library import Element, Library
from tokenmill.backends.models.decoder import RMSNorm
from tokenmill.backends.models.rope import rotate

ELEMENTS = {torch.float32: Element.F32, torch.bfloat16: Element.BF16}
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7}
"""Two roundings of the type, relative; a few more in float32."""

pytestmark = pytest.mark.usefixtures("instruction_set")
by_dtype = pytest.mark.parametrize("dtype", ELEMENTS, ids=str)
by_size = pytest.mark.parametrize("size", [1, 7, 16, 37, 576])


@pytest.fixture
def ops(library: Library) -> AttentionOps:
    return AttentionOps(library)


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _padded(rows: int, size: int, dtype: torch.dtype) -> Tensor:
    """NaN, with room beside the rows that must stay NaN."""
    return torch.full((rows, size + 5), torch.nan, dtype=dtype)


def _norm(
    ops: AttentionOps, x: Tensor, weight: Tensor, out: Tensor, delta: Tensor | None = None
) -> None:
    call = RmsNormCallStruct(
        x=x.data_ptr(),
        x_stride=x.stride(0),
        delta=None if delta is None else delta.data_ptr(),
        delta_stride=0 if delta is None else delta.stride(0),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        size=x.shape[1],
        eps=1e-5,
        element=ELEMENTS[x.dtype],
    )
    ops.rms_norm(ctypes.byref(call), x.shape[0])


@by_dtype
@by_size
def test_rms_norm_equals_the_decoder_s(ops: AttentionOps, size: int, dtype: torch.dtype) -> None:
    x = _random(5, size, dtype=dtype) * 3
    weight = 1 + _random(size, dtype=torch.float32, seed=1).to(dtype).float()
    out = _padded(5, size, dtype)
    _norm(ops, x, weight, out)
    expected = RMSNorm(weight.to(dtype), 1e-5)(x)
    torch.testing.assert_close(out[:, :size], expected, rtol=ROUNDING[dtype], atol=1e-6)
    assert out[:, size:].isnan().all()


@by_dtype
@by_size
def test_rms_norm_adds_and_keeps_the_sum_first(
    ops: AttentionOps, size: int, dtype: torch.dtype
) -> None:
    x, delta = _random(5, size, dtype=dtype), _random(5, size, dtype=dtype, seed=2)
    weight = torch.ones(size)
    total = x + delta
    out, separate = _padded(5, size, dtype), _padded(5, size, dtype)
    _norm(ops, x, weight, out, delta)
    assert torch.equal(x, total)
    _norm(ops, total, weight, separate)
    assert torch.equal(out[:, :size], separate[:, :size])


def test_rms_norm_of_bfloat16_rounds_as_torch_does(ops: AttentionOps) -> None:
    """Before the weight is applied and after; a sum in another order may tip one in many."""
    x, weight = _random(64, 576, dtype=torch.bfloat16), _random(576, dtype=torch.bfloat16, seed=1)
    out = torch.empty_like(x)
    _norm(ops, x, weight.float(), out)
    assert (out == RMSNorm(weight, 1e-5)(x)).double().mean() > 0.9995


REFERENCES: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.SILU: F.silu,
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
}


@by_dtype
@by_size
@pytest.mark.parametrize("activation", REFERENCES)
def test_activations_equal_torch_s_in_float64(
    ops: AttentionOps, activation: Activation, size: int, dtype: torch.dtype
) -> None:
    gate_up = _random(5, 2 * size, dtype=dtype) * 4
    gate_up[0, 0], gate_up[1, 0] = 80, -80
    gate, up = gate_up.chunk(2, dim=1)
    out = _padded(5, size, dtype)
    call = ActivateCallStruct(
        gate=gate.data_ptr(),
        up=up.data_ptr(),
        stride=gate_up.stride(0),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        size=size,
        activation=activation,
        element=ELEMENTS[dtype],
    )
    ops.activate(ctypes.byref(call), 5)
    expected = REFERENCES[activation](gate.double()) * up.double()
    # What is left of 1 + erf or 1 + tanh where they cancel is known as well as 1 is.
    bound = expected.abs() * ROUNDING[dtype] + (gate * up).abs().double() * 2e-7
    assert ((out[:, :size].double() - expected).abs() <= bound).all()
    assert out[:, size:].isnan().all()


@pytest.mark.parametrize("table_dtype", ELEMENTS, ids=str)
@by_dtype
def test_embeddings_are_gathered(
    ops: AttentionOps, table_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    if table_dtype is torch.float32 and dtype is torch.bfloat16:
        pytest.skip("activations are never less precise than the table")
    table = _random(11, 37, dtype=table_dtype)
    token_ids = torch.tensor([10, 0, 3, 3])
    out = _padded(4, 37, dtype)
    call = EmbedCallStruct(
        table=table.data_ptr(),
        table_element=ELEMENTS[table_dtype],
        out_element=ELEMENTS[dtype],
        token_ids=token_ids.data_ptr(),
        out=out.data_ptr(),
        out_stride=out.stride(0),
        size=37,
    )
    ops.embed(ctypes.byref(call), 4)
    assert torch.equal(out[:, :37], table[token_ids].to(dtype))
    assert out[:, 37:].isnan().all()


HEADS, KV_HEADS, TOKENS, POSITIONS, SLOTS_IN_ALL = 6, 2, 21, 40, 48
SLOTS = torch.randperm(SLOTS_IN_ALL, generator=torch.Generator().manual_seed(4))[:TOKENS]


def _rotate_and_write(
    ops: AttentionOps,
    qkv: Tensor,
    block_size: int,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    norms: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Changes the queries in `qkv` [t, n, d]; gives the cache."""
    head_size = qkv.shape[2]
    shape = (SLOTS_IN_ALL // block_size, KV_HEADS, 2, block_size, head_size)
    cache = torch.full(shape, torch.nan, dtype=qkv.dtype)
    q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    call = RotateAndWriteCallStruct(
        spec=AttentionSpecStruct(
            HEADS, KV_HEADS, head_size, block_size, ELEMENTS[qkv.dtype], 0, 1.0, 0.0
        ),
        q=q.data_ptr(),
        q_stride=q.stride(0),
        k=k.data_ptr(),
        k_stride=k.stride(0),
        v=v.data_ptr(),
        v_stride=v.stride(0),
        q_norm=None if norms is None else norms[0].data_ptr(),
        k_norm=None if norms is None else norms[1].data_ptr(),
        eps=1e-5,
        cos=None if cos is None else cos.data_ptr(),
        sin=None if sin is None else sin.data_ptr(),
        positions=None if positions is None else positions.data_ptr(),
        slots=SLOTS.data_ptr(),
        kv_cache=cache.data_ptr(),
    )
    ops.rotate_and_write(ctypes.byref(call), qkv.shape[0])
    return cache


def _read(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of all slots, [slots, k, d], out of the layout of csrc/attention.h."""
    num_blocks, kv_heads, _, size, head_size = cache.shape
    group = 16 if size % 16 == 0 else 8
    pack = 2 if cache.dtype is torch.bfloat16 else 1
    keys = cache[:, :, 0].reshape(
        num_blocks, kv_heads, size // group, head_size // pack, group, pack
    )
    values = cache[:, :, 1].reshape(num_blocks, kv_heads, size // pack, head_size, pack)
    keys = keys.permute(0, 2, 4, 1, 3, 5).reshape(-1, kv_heads, head_size)
    values = values.permute(0, 2, 4, 1, 3).reshape(-1, kv_heads, head_size)
    return keys, values


@by_dtype
@pytest.mark.parametrize("block_size", [8, 16, 24, 48])
@pytest.mark.parametrize("head_size", [16, 64, 80])
def test_keys_and_values_are_written_where_they_belong(
    ops: AttentionOps, head_size: int, block_size: int, dtype: torch.dtype
) -> None:
    qkv = _random(TOKENS, HEADS + 2 * KV_HEADS, head_size, dtype=dtype)
    before = qkv.clone()
    keys, values = _read(_rotate_and_write(ops, qkv, block_size))
    assert torch.equal(qkv, before)
    assert torch.equal(keys[SLOTS], qkv[:, HEADS : HEADS + KV_HEADS])
    assert torch.equal(values[SLOTS], qkv[:, HEADS + KV_HEADS :])
    rest = torch.ones(SLOTS_IN_ALL, dtype=torch.bool).index_fill_(0, SLOTS, False)
    assert keys[rest].isnan().all()
    assert values[rest].isnan().all()


@by_dtype
@pytest.mark.parametrize("with_norm", [False, True], ids=["plain", "qk-norm"])
@pytest.mark.parametrize("head_size", [16, 64, 80])
def test_queries_and_keys_are_normed_and_rotated(
    ops: AttentionOps, head_size: int, with_norm: bool, dtype: torch.dtype
) -> None:
    qkv = _random(TOKENS, HEADS + 2 * KV_HEADS, head_size, dtype=dtype)
    angles = _random(POSITIONS, head_size // 2, dtype=torch.float32, seed=1)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.arange(TOKENS).flip(0) + POSITIONS - TOKENS
    norms = [1 + _random(head_size, dtype=dtype, seed=seed).float() for seed in (2, 3)]
    q, k, v = qkv.clone().split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    if with_norm:
        q, k = (RMSNorm(w.to(dtype), 1e-5)(x) for w, x in zip(norms, (q, k), strict=True))
    angles_of = (cos[positions, None].double(), sin[positions, None].double())
    q, k = (rotate(x.double(), *angles_of) for x in (q, k))
    given = (norms[0].to(dtype).float(), norms[1].to(dtype).float()) if with_norm else None
    keys, values = _read(_rotate_and_write(ops, qkv, 16, cos, sin, positions, given))
    tolerance = ROUNDING[dtype] * 4
    torch.testing.assert_close(qkv[:, :HEADS].double(), q, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(keys[SLOTS].double(), k, rtol=tolerance, atol=tolerance)
    assert torch.equal(values[SLOTS], v)
