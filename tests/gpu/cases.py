"""The steps that every attention backend is checked with beside the conformance suite's: the shapes
of real models, the edges of tiles, splits and blocks, long contexts and large batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.testing.conformance.attention.checks import BATCHES
from tokenmill.testing.conformance.attention.steps import Span, Step

from .contenders import DEVICE

SPEC = AttentionSpec(
    num_heads=8,
    num_kv_heads=2,
    head_size=128,
    block_size=16,
    dtype=torch.bfloat16,
    device=DEVICE,
    scale=128**-0.5,
)
MIXED = tuple(BATCHES["mixed"][0])
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "sliding window": {"sliding_window": 11},
    "soft cap": {"logits_soft_cap": 0.7},
    "window and cap": {"sliding_window": 37, "logits_soft_cap": 0.7},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One step."""

    name: str
    sequences: Sequence[Span] = MIXED
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Of the specification."""

    @property
    def spec(self) -> AttentionSpec:
        return replace(SPEC, **self.changes)

    def step(self) -> Step:
        """Its decodes are the sequences of one query at the front."""
        others = (i for i, s in enumerate(self.sequences) if s.num_queries != 1)
        return Step(self.spec, self.sequences, next(others, len(self.sequences)))


def spans(*lengths: tuple[int, int]) -> list[Span]:
    """Of (queries, all tokens) each."""
    return [Span(num_queries=queries, seq_len=length) for queries, length in lengths]


def _variants() -> list[Case]:
    return [
        Case(name=f"{kind}, {variant}", sequences=BATCHES[kind][0], changes=VARIANTS[variant])
        for kind in BATCHES
        for variant in VARIANTS
    ]


def _shapes() -> list[Case]:
    ratios = ((8, 8), (8, 1), (6, 2), (32, 8), (64, 8), (5, 1))
    return [
        *(Case(name=f"blocks of {n}", changes={"block_size": n}) for n in (8, 32, 64, 128, 256)),
        *(
            Case(name=f"heads of {n}", changes={"head_size": n, "scale": n**-0.5})
            for n in (64, 80, 96, 112, 192, 256)
        ),
        *(
            Case(name=f"{h} heads on {k}", changes={"num_heads": h, "num_kv_heads": k})
            for h, k in ratios
        ),
        *(
            Case(name=f"{str(dtype)[6:]}, {variant}", changes={"dtype": dtype, **VARIANTS[variant]})
            for dtype in (torch.float32, torch.float16)
            for variant in ("plain", "window and cap")
        ),
    ]


def _edges() -> list[Case]:
    """Prompts, and parts of one prompt, that end at the edges of blocks and of kernels' tiles."""
    ends = [n + d for n in (16, 32, 64, 128, 256) for d in (-1, 0, 1)]
    bounds = [0, 16, 33, 64, 66, 128, 200, 256, 258]
    parts = [(end - start, end) for start, end in pairwise(bounds)]
    return [
        Case(name="decodes at tiles' edges", sequences=spans(*((1, n) for n in ends))),
        Case(name="prompts at tiles' edges", sequences=spans(*((n, n) for n in ends))),
        Case(name="chunks at tiles' edges", sequences=spans(*parts)),
        Case(
            name="few queries of long contexts",
            sequences=spans(*((q, 700) for q in (2, 3, 16, 17))),
        ),
        Case(name="one-token sequences", sequences=spans(*[(1, 1)] * 5)),
        Case(
            name="sequences without queries",
            sequences=spans((1, 9), (0, 20), (3, 9), (0, 5), (2, 17)),
        ),
    ]


def _long() -> list[Case]:
    """Contexts that kernels split: alone, side by side with short ones, and in a large batch."""
    decodes = spans(*((1, n) for n in (1, 2047, 2048, 4097, 20000)))
    return [
        Case(name="long decodes", sequences=decodes),
        Case(name="one long decode", sequences=spans((1, 20001))),
        Case(name="long decodes, window", sequences=decodes, changes={"sliding_window": 3000}),
        Case(name="long decodes, blocks of 64", sequences=decodes, changes={"block_size": 64}),
        Case(name="long and short", sequences=spans((1, 9000), (1, 3), (64, 5000), (2, 2))),
        Case(name="200 decodes", sequences=spans(*((1, 1 + 7 * i % 431) for i in range(200)))),
    ]


CASES = {case.name: case for case in (*_variants(), *_shapes(), *_edges(), *_long())}

BLOCKS = {
    case.name: case
    for case in (
        Case(name=f"blocks of {size}, {variant}", changes={"block_size": size, **extra})
        for size in (16, 64, 256)
        for variant, extra in (("plain", {}), ("window", {"sliding_window": 37}))
    )
}
"""What depends on the size of blocks."""
