"""What a setting must come to: the reference's tokens, and what it was chosen for took place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .reference import ReferenceCase
from .settings import Setting

NEAR_TIE = 1e-4
"""A difference is excused where the reference's best two logits are nearer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What an engine made of the prompts, in their order."""

    attention_backend: str
    token_ids: Sequence[tuple[int, ...]]
    num_preempted: int
    """Requests that were preempted at least once."""
    num_preemptions: int
    num_swaps: int
    """Of the preemptions, those whose blocks went to the host."""
    num_hit_tokens: int
    """Prompt tokens that came from the prefix cache."""
    num_draft_tokens: int = 0
    """Drafts that were verified."""
    num_accepted_tokens: int = 0
    """Those of them that were right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTie:
    """Where an output left the reference, excusably."""

    name: str
    position: int
    gap: float


def find_near_ties(
    gap: Callable[[Sequence[int]], float],
    cases: Sequence[ReferenceCase],
    outputs: Sequence[Sequence[int]],
) -> list[NearTie]:
    """Fails for a difference that is no near-tie, or more than one near-tie in 200 requests.

    `gap` computes the difference between the reference's best two logits after some tokens.
    """
    found = []
    for case, output in zip(cases, outputs, strict=True):
        expected = case.token_ids
        assert len(output) == len(expected), case.name
        if tuple(output) == expected:
            continue
        at = next(i for i, (a, b) in enumerate(zip(output, expected, strict=True)) if a != b)
        near = gap([*case.prompt_token_ids, *expected[:at]])
        assert near < NEAR_TIE, f"{case.name!r} differs at token {at}, gap {near:.2e}"
        found.append(NearTie(name=case.name, position=at, gap=near))
    assert len(found) <= max(1, len(cases) // 200)
    return found


def check_what_took_place(setting: Setting, served: Served) -> None:
    """Memory was short where it should be, a tenth of the requests lost theirs; swaps; hits."""
    if setting.is_starved:
        assert served.num_preempted >= len(served.token_ids) / 10
    else:
        assert served.num_preemptions == 0
    assert (served.num_swaps > 0) is setting.swaps
    assert (served.num_hit_tokens > 0) is setting.enable_prefix_caching
