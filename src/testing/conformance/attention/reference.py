"""Reference attention: computed in float64, one sequence at a time, in the simplest way.

Shape suffixes: q queries of a sequence, l keys of a sequence, h query heads, k KV heads, g query
heads per KV head, d head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ....backends.attention.base import AttentionSpec

TOLERANCES: Mapping[torch.dtype, float] = {
    torch.float32: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}
"""Maximum error of a result, relative and absolute, for values of the order of 1. It allows sums in
any order and weights in the precision itself. It rejects TF32 instead of float32, and a single
wrong key."""

_MAX_SCORES = 1 << 24
"""Maximum number of scores, over all heads, that are in memory at a time."""


def reference_attention(
    spec: AttentionSpec,
    q_qhd: torch.Tensor,
    k_lkd: torch.Tensor,
    v_lkd: torch.Tensor,
    sinks_h: torch.Tensor | None = None,
    last_keys_q: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one sequence's last q tokens over all its keys: float64 [q, h, d].

    The last query sees the last key (bottom-right aligned). The spec's `sliding_window` includes
    the query itself. Scores are capped after scaling, as in Gemma 2. `sinks_h` are needed if the
    spec has sinks. `last_keys_q`: the last key that each query sees; None: its own.
    """
    num_queries, num_keys = q_qhd.shape[0], k_lkd.shape[0]
    tile = max(1, _MAX_SCORES // (q_qhd.shape[1] * num_keys))
    k_kld, v_kld = (x.double().transpose(0, 1) for x in (k_lkd, v_lkd))
    positions_q = torch.arange(num_keys - num_queries, num_keys, device=q_qhd.device)
    if last_keys_q is None:
        last_keys_q = positions_q
    sinks_kg = None if sinks_h is None else sinks_h.double().view(k_kld.shape[0], -1)
    rows = [
        _attend(
            spec,
            q_qhd[start : start + tile],
            positions_q[start : start + tile],
            last_keys_q[start : start + tile],
            k_kld,
            v_kld,
            sinks_kg,
        )
        for start in range(0, num_queries, tile)
    ]
    return torch.cat(rows) if rows else q_qhd.double()


def _attend(
    spec: AttentionSpec,
    q_qhd: torch.Tensor,
    positions_q: torch.Tensor,
    last_keys_q: torch.Tensor,
    k_kld: torch.Tensor,
    v_kld: torch.Tensor,
    sinks_kg: torch.Tensor | None,
) -> torch.Tensor:
    q_qkgd = q_qhd.double().view(len(q_qhd), k_kld.shape[0], -1, q_qhd.shape[2])
    scores_kgql = torch.einsum("qkgd,kld->kgql", q_qkgd, k_kld) * spec.scale
    if spec.logits_soft_cap is not None:
        scores_kgql = spec.logits_soft_cap * torch.tanh(scores_kgql / spec.logits_soft_cap)
    hidden_ql = ~_visible(spec, positions_q, last_keys_q, k_kld.shape[1])
    scores_kgql = scores_kgql.masked_fill(hidden_ql, -torch.inf)
    if sinks_kg is not None:
        sinks_kgq1 = sinks_kg[..., None, None].expand(*scores_kgql.shape[:-1], 1)
        scores_kgql = torch.cat((scores_kgql, sinks_kgq1), dim=-1)
    weights_kgql = scores_kgql.softmax(dim=-1)[..., : k_kld.shape[1]]
    return torch.einsum("kgql,kld->qkgd", weights_kgql, v_kld).flatten(1, 2)


def _visible(
    spec: AttentionSpec, positions_q: torch.Tensor, last_keys_q: torch.Tensor, num_keys: int
) -> torch.Tensor:
    """The keys that each query sees: bool [q, l]."""
    keys_l = torch.arange(num_keys, device=positions_q.device)
    visible_ql = keys_l <= last_keys_q[:, None]
    if spec.sliding_window is not None:
        visible_ql &= keys_l > positions_q[:, None] - spec.sliding_window
    return visible_ql
