"""A stand-in for xformers, which needs a GPU: true signatures, computed in float64 on the CPU.

Signatures and refusals are those of xformers 0.0.35, xformers/ops/fmha: __init__.py, attn_bias.py
and triton_splitk.py. Only float32 is not refused, which lets the tests compare exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from ..package_fakes import Calls, attend, install, paged


@dataclass
class BlockDiagonalMask:
    query_lens: list[int]
    key_lens: list[int]
    window_size: int | None = None
    is_causal: bool = False

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, device=None):
        assert not isinstance(q_seqlen, torch.Tensor) and device is not None
        return cls(list(q_seqlen), list(kv_seqlen if kv_seqlen is not None else q_seqlen))

    def make_causal_from_bottomright(self):
        assert all(k >= q for q, k in zip(self.query_lens, self.key_lens, strict=True))
        return BlockDiagonalMask(self.query_lens, self.key_lens, None, True)

    def make_local_attention_from_bottomright(self, window_size):
        assert window_size > 0
        return BlockDiagonalMask(self.query_lens, self.key_lens, window_size, True)


@dataclass
class PaddedSeqLenInfo:
    """`seqlen` is what the kernel reads; the host's lengths are those at the start."""

    seqlen: torch.Tensor
    seqlen_py: list[int]


@dataclass
class PagedBlockDiagonalCausalWithOffsetPaddedKeysMask:
    query_lens: list[int]
    k_seqinfo: PaddedSeqLenInfo
    block_tables: torch.Tensor
    page_size: int

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen, block_tables, page_size, *, device=None):
        assert len(q_seqlen) == len(kv_seqlen) == block_tables.shape[0] and device is not None
        assert all(length <= block_tables.shape[1] * page_size for length in kv_seqlen)
        seqlen = torch.tensor(kv_seqlen, dtype=torch.int32, device=device)
        return cls(
            list(q_seqlen), PaddedSeqLenInfo(seqlen, list(kv_seqlen)), block_tables, page_size
        )


class FwOp:
    """triton_splitk's."""


def install_xformers(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()

    @calls.of("attend")
    def memory_efficient_attention_forward(
        query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None
    ):
        _, num_queries, groups, per_group, head_size = query.shape
        assert key.shape == value.shape == (1, key.shape[1], groups, per_group, head_size)
        assert num_queries == sum(attn_bias.query_lens)
        k, v = key[0, :, :, 0], value[0, :, :, 0]
        if op is FwOp:
            calls.names[-1] = "splitk"
            keys, values = _pages(attn_bias, k), _pages(attn_bias, v)
            window = None
            assert head_size in (16, 32, 64, 128, 256, 512)
            assert set(attn_bias.query_lens) <= {attn_bias.query_lens[0]}
        else:
            assert op is None and attn_bias.is_causal and k.shape[0] == sum(attn_bias.key_lens)
            keys, values = k.split(attn_bias.key_lens), v.split(attn_bias.key_lens)
            window = attn_bias.window_size
        rows = [
            attend(
                q,
                own_k,
                own_v,
                scale=scale,
                causal=True,
                window=(-1, -1) if window is None else (window - 1, 0),
                softcap=0.0,
            )
            for q, own_k, own_v in zip(
                query[0].flatten(1, 2).split(attn_bias.query_lens), keys, values, strict=True
            )
        ]
        return torch.cat(rows).view(query.shape)

    fmha = SimpleNamespace(
        attn_bias=SimpleNamespace(
            BlockDiagonalMask=BlockDiagonalMask,
            PagedBlockDiagonalCausalWithOffsetPaddedKeysMask=(
                PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
            ),
        ),
        triton_splitk=SimpleNamespace(FwOp=FwOp),
        memory_efficient_attention_forward=memory_efficient_attention_forward,
    )
    install(monkeypatch, "xformers.ops", fmha=fmha)
    return calls


def _pages(bias, rows):
    assert rows.shape[0] % bias.page_size == 0 and bias.page_size % 64 == 0
    cache = rows.unflatten(0, (-1, bias.page_size))
    return [
        paged(cache, table, length)
        for table, length in zip(bias.block_tables, bias.k_seqinfo.seqlen.tolist(), strict=True)
    ]
