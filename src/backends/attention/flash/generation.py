"""The common protocol of FlashAttention's generations; an adapter implements each of them.

Shape suffixes: t tokens of the step, b sequences, h query heads, k KV heads, d head size, n KV
blocks, s slots of a block, m blocks of the longest block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..base import AttentionBatch, AttentionSpec
from ..packages import Source, reason_against


class Generation(Protocol):
    """Attention over a paged KV cache by one generation of FlashAttention.

    Its kernels compute in float16 and bfloat16 on NVIDIA GPUs.
    """

    name: str
    majors: tuple[int, ...]
    """Major compute capabilities of its GPUs: 9 stands for 9.x."""
    source: Source

    @classmethod
    def reasons_against(cls, spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
        """Return what the spec needs that the kernels cannot do, one line each.

        `capability` None: the GPU is not known.
        """
        ...

    def __init__(self, spec: AttentionSpec) -> None:
        """Import the package. Raises PackageError."""
        ...

    def build_metadata(self, batch: AttentionBatch) -> Any:
        """Compute the data that `attend` needs, once per step."""
        ...

    def attend(
        self,
        q_thd: torch.Tensor,
        k_tkd: torch.Tensor,
        v_tkd: torch.Tensor,
        cached: tuple[torch.Tensor, torch.Tensor],
        metadata: Any,
        out_thd: torch.Tensor,
    ) -> None:
        """Fill `out_thd`; `cached` already holds the step's keys and values.

        `cached` has keys and values [n, s, k, d]. They are views: only the last dimension must be
        contiguous.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedMetadata:
    """One step for kernels that follow block tables, all sequences in one call."""

    query_start_loc: torch.Tensor
    """int32 [b + 1]."""
    seq_lens: torch.Tensor
    """int32 [b]."""
    block_tables_bm: torch.Tensor
    """int32 [b, m]."""
    max_query_len: int
    max_seq_len: int

    @classmethod
    def of(cls, batch: AttentionBatch) -> PagedMetadata:
        return cls(
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            block_tables_bm=batch.block_tables_bm,
            max_query_len=max(batch.query_lens_host),
            max_seq_len=max(batch.seq_lens_host),
        )


def reasons_against(
    generation: type[Generation], spec: AttentionSpec, capability: tuple[int, int] | None
) -> list[str]:
    """Return every reason why a generation cannot serve the spec.

    The package is imported only if there is no other reason. `capability` None skips the checks of
    the GPU.
    """
    reasons = [
        *_reasons_of_device(generation, capability),
        *generation.reasons_against(spec, capability),
    ]
    source = generation.source
    missing = source.reason_if_missing() if reasons else reason_against(source)
    return [*reasons, missing] if missing is not None else reasons


def state_on_this_machine(generation: type[Generation], capability: tuple[int, int] | None) -> str:
    """Return a line that says whether the generation is usable here, or why not.

    It imports the generation's package.
    """
    reasons = _reasons_of_device(generation, capability)
    broken = reason_against(generation.source)
    if broken is not None:
        reasons.append(broken)
    return f"{generation.name}: {'; '.join(reasons) or 'installed'}"


def window(spec: AttentionSpec) -> tuple[int, int]:
    """Return how many keys a query sees before and after its own key; -1: all."""
    return (-1, -1) if spec.sliding_window is None else (spec.sliding_window - 1, 0)


def options_of(spec: AttentionSpec) -> dict[str, Any]:
    """Return the keyword arguments that the functions of generations 2 and 3 take in every call."""
    return {
        "softmax_scale": spec.scale,
        "causal": True,
        "window_size": window(spec),
        "softcap": spec.logits_soft_cap or 0.0,
    }


def _reasons_of_device(
    generation: type[Generation], capability: tuple[int, int] | None
) -> list[str]:
    if capability is None or capability[0] in generation.majors:
        return []
    major, minor = capability
    return [
        f"it is for compute capability {_join(generation.majors)}, this GPU has {major}.{minor}"
    ]


def _join(majors: Sequence[int]) -> str:
    *others, last = (f"{major}.x" for major in majors)
    return f"{', '.join(others)} or {last}" if others else last
