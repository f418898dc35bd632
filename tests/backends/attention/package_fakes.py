"""Stand-ins for packages that need a GPU: their true signatures, computed in float64 on the CPU.

What they are given is all that they compute from, so an adapter that passes a wrong table, length,
mask or scale gets wrong numbers. They also refuse what the true ones refuse, except float32, which
lets the tests compare exactly. Signatures and refusals are those of

* flash-attn 2.8.3.post2, flash_attn/flash_attn_interface.py and csrc/flash_attn/flash_api.cpp;
* FlashAttention 3.0.0.b1, hopper/flash_attn_interface.py of the same distribution;
* FlashAttention 3 as vLLM builds it, flash_api_torch_lib.cpp of vllm-project/flash-attention,
  without `o_scale` as in vLLM 0.26 and with it as later;
* flash-attn-4 4.0.0b36, flash_attn/cute/interface.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

Window = tuple[int | None, int | None]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None,
    causal: bool,
    window: Window,
    softcap: float,
) -> torch.Tensor:
    """One sequence, [q, h, d] and [l, k, d]; masks are aligned at the bottom right. A row that
    sees nothing is zero."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("qhd,lhd->hql", q.double(), k) * (scale or q.shape[-1] ** -0.5)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    key = torch.arange(k.shape[0])
    visible = key <= position if causal else torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    left, right = window
    if left is not None and left >= 0:
        visible = visible & (key >= position - left)
    if right is not None and right >= 0:
        visible = visible & (key <= position + right)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hql,lhd->qhd", weights, v).to(q.dtype)


def paged(cache: torch.Tensor, table: torch.Tensor, seq_len: int) -> torch.Tensor:
    """A sequence's keys or values, [l, k, d], out of [n, s, k, d]."""
    size = cache.shape[1]
    assert cache.stride(-1) == 1 and table.dtype == torch.int32 and table.stride(-1) == 1
    return cache[table[: -(-seq_len // size)].long()].flatten(0, 1)[:seq_len]


def sequences(start_loc: torch.Tensor, longest: int) -> Iterator[slice]:
    """Rows of each sequence; the true kernels compute none beyond `longest`."""
    assert start_loc.dtype == torch.int32 and start_loc[0] == 0
    for start, end in zip(start_loc.tolist()[:-1], start_loc.tolist()[1:], strict=True):
        assert end - start <= longest
        yield slice(start, end)


@contextmanager
def forgotten(*packages: str) -> Iterator[None]:
    """Whatever is imported of these packages is forgotten, before and afterwards."""

    def forget() -> None:
        for name in [n for n in sys.modules if n.partition(".")[0] in packages]:
            del sys.modules[name]

    forget()
    yield
    forget()


class Calls:
    """The functions that were called, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def of(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def record(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                self.names.append(name)
                return function(*args, **kwargs)

            return called

        return record


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """A module in sys.modules, with packages above it where there are none."""
    module = ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)
    above, _, own = name.rpartition(".")
    if above:
        if above not in sys.modules:
            install(monkeypatch, above, __path__=[])
        monkeypatch.setattr(sys.modules[above], own, module, raising=False)
    return module


def install_flash_attention_2(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()

    @calls.of("varlen")
    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        alibi_slopes=None,
        deterministic=False,
        return_attn_probs=False,
        block_table=None,
    ):
        assert block_table is None or k.shape[1] % 256 == 0
        out = torch.full_like(q, torch.nan)
        rows = sequences(cu_seqlens_q, max_seqlen_q)
        columns = sequences(cu_seqlens_k, max_seqlen_k)
        for index, (own, keys) in enumerate(zip(rows, columns, strict=True)):
            own_k, own_v = (
                x[keys]
                if block_table is None
                else paged(x, block_table[index], keys.stop - keys.start)
                for x in (k, v)
            )
            out[own] = attend(
                q[own],
                own_k,
                own_v,
                scale=softmax_scale,
                causal=causal,
                window=window_size,
                softcap=softcap,
            )
        return out

    @calls.of("kvcache")
    def flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k=None,
        v=None,
        rotary_cos=None,
        rotary_sin=None,
        cache_seqlens=None,
        cache_batch_idx=None,
        cache_leftpad=None,
        block_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        rotary_interleaved=True,
        alibi_slopes=None,
        num_splits=0,
        return_softmax_lse=False,
    ):
        assert k_cache.shape[1] % 256 == 0 and cache_seqlens.dtype == torch.int32
        assert block_table.shape[0] == q.shape[0] == cache_seqlens.shape[0]
        rows = [
            attend(
                q[index],
                paged(k_cache, block_table[index], seq_len),
                paged(v_cache, block_table[index], seq_len),
                scale=softmax_scale,
                causal=causal,
                window=window_size,
                softcap=softcap,
            )
            for index, seq_len in enumerate(cache_seqlens.tolist())
        ]
        return torch.stack(rows)

    install(
        monkeypatch,
        "flash_attn.flash_attn_interface",
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
    )
    return calls


def install_flash_attention_3(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()

    @calls.of("kvcache")
    def flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        k=None,
        v=None,
        qv=None,
        rotary_cos=None,
        rotary_sin=None,
        cache_seqlens=None,
        cache_batch_idx=None,
        cache_leftpad=None,
        page_table=None,
        cu_seqlens_q=None,
        cu_seqlens_k_new=None,
        max_seqlen_q=None,
        rotary_seqlens=None,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        attention_chunk=0,
        softcap=0.0,
        rotary_interleaved=True,
        scheduler_metadata=None,
        num_splits=0,
        pack_gqa=None,
        sm_margin=0,
        return_softmax_lse=False,
    ):
        return attend_paged(
            q,
            k_cache,
            v_cache,
            cu_seqlens_q,
            max_seqlen_q,
            cache_seqlens,
            page_table,
            scale=softmax_scale,
            causal=causal,
            window=window_size,
            softcap=softcap,
        )

    install(monkeypatch, "flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)
    return calls


def install_flash_attention_4(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()

    @calls.of("varlen")
    def flash_attn_varlen_func(
        q,
        k,
        v,
        qv=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        min_seqlen_k=None,
        seqused_q=None,
        seqused_k=None,
        gather_kv_indices=None,
        page_table=None,
        softmax_scale=None,
        causal=False,
        window_size=(None, None),
        learnable_sink=None,
        softcap=0.0,
        num_splits=1,
        pack_gqa=None,
        deterministic=False,
        score_mod=None,
        score_mod_bwd=None,
        mask_mod=None,
        block_sparse_tensors=None,
        aux_tensors=None,
        aux_scalars=None,
        return_lse=False,
        scheduler_metadata=None,
        seqlen_k_per_split=None,
        disable_scheduler_metadata=False,
        gather_bwd_recompute_p=False,
        gather_bwd_token_chunk=None,
    ):
        assert page_table is not None and cu_seqlens_k is None and num_splits == 1
        assert max_seqlen_k >= max(seqused_k.tolist())
        out = attend_paged(
            q,
            k,
            v,
            cu_seqlens_q,
            max_seqlen_q,
            seqused_k,
            page_table,
            scale=softmax_scale,
            causal=causal,
            window=window_size,
            softcap=softcap,
        )
        return out, None

    install(monkeypatch, "flash_attn.cute", flash_attn_varlen_func=flash_attn_varlen_func)
    return calls


def attend_paged(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start_loc: torch.Tensor,
    longest: int,
    seq_lens: torch.Tensor,
    tables: torch.Tensor,
    **mask: Any,
) -> torch.Tensor:
    """All sequences of a step, through their block tables."""
    assert seq_lens.dtype == torch.int32 and seq_lens.shape[0] == tables.shape[0]
    out = torch.full_like(q, torch.nan)
    for index, own in enumerate(sequences(query_start_loc, longest)):
        seq_len = int(seq_lens[index])
        own_k, own_v = (paged(x, tables[index], seq_len) for x in (k, v))
        out[own] = attend(q[own], own_k, own_v, **mask)
    return out


_VLLM_SCHEMA = """fwd(Tensor! q, Tensor k, Tensor v, Tensor? k_new, Tensor? v_new, Tensor? q_v,
    Tensor!? out, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? cu_seqlens_k_new,
    Tensor? seqused_q, Tensor? seqused_k, int? max_seqlen_q, int? max_seqlen_k, Tensor? page_table,
    Tensor? kv_batch_idx, Tensor? leftpad_k, Tensor? rotary_cos, Tensor? rotary_sin,
    Tensor? seqlens_rotary, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale,
    {o_scale} float softmax_scale, bool is_causal, int window_size_left, int window_size_right,
    float softcap, bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits,
    bool? pack_gqa, int sm_margin, Tensor? s_aux, int cp_world_size, int cp_rank,
    Tensor? cp_tot_seqused_k) -> Tensor[]"""


@contextmanager
def vllm_operators(*, has_o_scale: bool) -> Iterator[Calls]:
    """The operator library `_vllm_fa3_C`, loaded."""
    calls = Calls()
    library = torch.library.Library("_vllm_fa3_C", "DEF")
    schema = _VLLM_SCHEMA.format(o_scale="Tensor? o_scale," if has_o_scale else "")
    library.define(" ".join(schema.split()))
    names = [argument.name for argument in torch.ops._vllm_fa3_C.fwd.default._schema.arguments]

    def fwd(*args: Any) -> list[torch.Tensor]:
        calls.names.append("fwd")
        given = dict(zip(names, args, strict=True))
        assert given["cu_seqlens_k"] is None and given["cp_world_size"] == 1
        given["out"].copy_(
            attend_paged(
                given["q"],
                given["k"],
                given["v"],
                given["cu_seqlens_q"],
                given["max_seqlen_q"],
                given["seqused_k"],
                given["page_table"],
                scale=given["softmax_scale"],
                causal=given["is_causal"],
                window=(given["window_size_left"], given["window_size_right"]),
                softcap=given["softcap"],
            )
        )
        return [torch.empty(0)] * 3

    library.impl("fwd", fwd, "CPU")
    try:
        yield calls
    finally:
        library._destroy()
        vars(torch.ops._vllm_fa3_C).pop("fwd", None)
