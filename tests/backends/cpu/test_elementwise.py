"""Norms, embeddings and rotation of the native library, by the calls that models make."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from tokenmill.backends.cpu.attention_ops import AttentionOps
from tokenmill.backends.cpu.native.library import Element, Library
from tokenmill.backends.cpu.native.structures import (
    AttentionBatchStruct,
    AttentionCallStruct,
    AttentionSpecStruct,
    DecoderModelStruct,
    DecoderStepStruct,
    EmbeddingStruct,
    RotateAndWriteCallStruct,
)
from tokenmill.backends.cpu.packed_weights import pack_linear
from tokenmill.backends.models.native.decoder import RMSNorm
from tokenmill.backends.models.native.rope import rotate

ELEMENTS = {torch.float32: Element.F32, torch.bfloat16: Element.BF16}
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7}
"""Two roundings of the type, relative; a few more in float32."""

pytestmark = pytest.mark.usefixtures("instruction_set")
by_dtype = pytest.mark.parametrize("dtype", ELEMENTS, ids=str)


@pytest.fixture
def ops(library: Library) -> AttentionOps:
    return AttentionOps(library)


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _embed_and_norm(
    library: Library,
    table: Tensor,
    token_ids: Tensor,
    rows: Tensor,
    weight: Tensor,
    scale: float = 1.0,
    float32_norms: bool = False,
) -> tuple[Tensor, Tensor]:
    """A decoder without layers: what it embeds, and the norm of those rows of it. Both buffers have
    a row more, of NaN, that must stay so."""
    size, num_tokens = table.shape[1], len(token_ids)
    hidden = torch.full((num_tokens + 1, size), torch.nan, dtype=torch.bfloat16)
    normed = torch.full((len(rows) + 1, size), torch.nan, dtype=torch.bfloat16)
    head, logits = pack_linear(torch.zeros(1, size)), torch.empty(len(rows), 1)
    model = DecoderModelStruct(
        spec=AttentionSpecStruct(element=Element.BF16),
        num_layers=0,
        hidden_size=size,
        embedding=EmbeddingStruct(table=table.data_ptr()),
        norm=weight.data_ptr(),
        head=ctypes.pointer(head.struct),
        eps=1e-5,
        embedding_scale=scale,
        float32_norms=float32_norms,
    )
    step = DecoderStepStruct(
        num_tokens=num_tokens,
        token_ids=token_ids.data_ptr(),
        hidden=hidden.data_ptr(),
        num_sampled=len(rows),
        sampled_rows=rows.data_ptr(),
        sampled=normed.data_ptr(),
        logits=logits.data_ptr(),
    )
    run = library.computing("tm_run_decoder", "it", DecoderModelStruct, DecoderStepStruct)
    run(ctypes.byref(model), ctypes.byref(step))
    assert hidden[-1].isnan().all() and normed[-1].isnan().all()
    return hidden[:-1], normed[:-1]


@pytest.mark.parametrize("size", [2, 16, 38, 576])
def test_embeddings_are_gathered_and_chosen_rows_normed(library: Library, size: int) -> None:
    table = _random(11, size, dtype=torch.bfloat16) * 3
    weight = 1 + _random(size, dtype=torch.float32, seed=1).bfloat16().float()
    token_ids, rows = torch.tensor([10, 0, 3, 3, 7]), torch.tensor([4, 0, 3])
    hidden, normed = _embed_and_norm(library, table, token_ids, rows, weight)
    assert torch.equal(hidden, table[token_ids])
    scaled, _ = _embed_and_norm(library, table, token_ids, rows, weight, scale=5.25)
    assert torch.equal(scaled, table[token_ids] * 5.25)
    expected = RMSNorm(weight.bfloat16(), 1e-5)(table[token_ids[rows]])
    torch.testing.assert_close(normed, expected, rtol=ROUNDING[torch.bfloat16], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_norm_rounds_as_torch_does(library: Library, dtype: torch.dtype) -> None:
    """A bfloat16 weight is applied to a rounded quotient, a float32 weight to an unrounded one. A
    sum in another order may change one result in many."""
    x, weight = _random(64, 576, dtype=torch.bfloat16), _random(576, dtype=dtype, seed=1)
    every = torch.arange(64)
    _, normed = _embed_and_norm(
        library, x, every, every, weight.float(), float32_norms=dtype is torch.float32
    )
    assert (normed == RMSNorm(weight, 1e-5)(x)).double().mean() > 0.9995


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
    float32_norms: bool = False,
) -> Tensor:
    """Changes the queries in `qkv` [t, n, d]; gives the cache. No sequence attends."""
    head_size = qkv.shape[2]
    shape = (SLOTS_IN_ALL // block_size, KV_HEADS, 2, block_size, head_size)
    cache = torch.full(shape, torch.nan, dtype=qkv.dtype)
    q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    spec = AttentionSpecStruct(
        HEADS, KV_HEADS, head_size, block_size, ELEMENTS[qkv.dtype], 0, 1.0, 0.0
    )
    call = RotateAndWriteCallStruct(
        spec=spec,
        q=q.data_ptr(),
        q_stride=q.stride(0),
        k=k.data_ptr(),
        k_stride=k.stride(0),
        v=v.data_ptr(),
        v_stride=v.stride(0),
        q_norm=None if norms is None else norms[0].data_ptr(),
        k_norm=None if norms is None else norms[1].data_ptr(),
        eps=1e-5,
        float32_norms=float32_norms,
        rotary_size=0 if cos is None else 2 * cos.shape[1],
        cos=None if cos is None else cos.data_ptr(),
        sin=None if sin is None else sin.data_ptr(),
        positions=None if positions is None else positions.data_ptr(),
        slots=SLOTS.data_ptr(),
        kv_cache=cache.data_ptr(),
    )
    nothing = ops.plan(spec, AttentionBatchStruct())
    attend = AttentionCallStruct(plan=nothing.address)
    ops.write_and_attend(ctypes.byref(call), qkv.shape[0], ctypes.byref(attend))
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
@pytest.mark.parametrize("norm", ["no norm", "norm", "float32 norm"])
@pytest.mark.parametrize(
    "head_size, rotary_size", [(16, 16), (64, 64), (80, 80), (64, 32), (80, 48)]
)
def test_queries_and_keys_are_normed_and_rotated(
    ops: AttentionOps, head_size: int, rotary_size: int, norm: str, dtype: torch.dtype
) -> None:
    qkv = _random(TOKENS, HEADS + 2 * KV_HEADS, head_size, dtype=dtype)
    angles = _random(POSITIONS, rotary_size // 2, dtype=torch.float32, seed=1)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.arange(TOKENS).flip(0) + POSITIONS - TOKENS
    weight_type = torch.float32 if norm == "float32 norm" else dtype
    norms = [1 + _random(head_size, dtype=weight_type, seed=seed) for seed in (2, 3)]
    q, k, v = qkv.clone().split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    given = None
    if norm != "no norm":
        q, k = (RMSNorm(w, 1e-5)(x) for w, x in zip(norms, (q, k), strict=True))
        given = norms[0].float(), norms[1].float()
    angles_of = (cos[positions, None].double(), sin[positions, None].double())
    q, k = (rotate(x.double(), *angles_of) for x in (q, k))
    is_float32 = norm == "float32 norm"
    keys, values = _read(_rotate_and_write(ops, qkv, 16, cos, sin, positions, given, is_float32))
    tolerance = ROUNDING[dtype] * 4
    torch.testing.assert_close(qkv[:, :HEADS].double(), q, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(keys[SLOTS].double(), k, rtol=tolerance, atol=tolerance)
    assert torch.equal(values[SLOTS], v)
