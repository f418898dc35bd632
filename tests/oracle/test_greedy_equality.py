"""Greedy fp32 output is transformers' own, token for token, whatever engine and memory do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tokenmill import LLM, SamplingParams
from tokenmill.core.outputs import RequestOutput

from .prompts import all_prompts
from .reference import NEAR_TIE, Reference, ReferenceCase

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "chunked, whole prompts": {"scheduler": "chunked", "block_size": 16},
    "prefill-first, whole prompts": {"scheduler": "prefill-first", "block_size": 32},
    "chunked, chunks of 32": {
        "scheduler": "chunked",
        "block_size": 8,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 24,
    },
    "prefill-first, chunks of 40, starved": {
        "scheduler": "prefill-first",
        "block_size": 8,
        "max_num_batched_tokens": 40,
        "num_gpu_blocks_override": 110,
        "watermark": 0.0,
    },
    "chunked, no prefix cache, starved": {
        "scheduler": "chunked",
        "block_size": 16,
        "num_gpu_blocks_override": 60,
        "enable_prefix_caching": False,
        "watermark": 0.0,
    },
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_tokens_are_those_of_transformers(
    name: str, reference: Reference, cases: list[ReferenceCase]
) -> None:
    options = CONFIGURATIONS[name]
    shuffled = random.Random(name).sample(cases, len(cases))
    with LLM(dtype="float32", disable_log_stats=True, **options) as llm:
        outputs = llm.generate(
            [case.prompt_token_ids for case in shuffled],
            [greedy(case) for case in shuffled],
            use_tqdm=False,
        )
    assert_equal_but_for_near_ties(reference, shuffled, outputs)
    if "num_gpu_blocks_override" in options:
        preempted = sum(o.metrics is not None and o.metrics.num_preemptions > 0 for o in outputs)
        assert preempted >= len(cases) / 10


def test_the_prompts_are_as_many_and_as_long_as_the_comparison_asks_for() -> None:
    prompts = all_prompts()
    assert len(prompts) >= 60
    assert sum(p.num_tokens >= 256 for p in prompts) >= 10
    assert all(p.num_tokens >= 48 for p in prompts)


def greedy(case: ReferenceCase) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=case.prompt.num_tokens, ignore_eos=True)


def assert_equal_but_for_near_ties(
    reference: Reference, cases: Sequence[ReferenceCase], outputs: Sequence[RequestOutput]
) -> None:
    """Fails for any difference that is no near-tie, and for more than one near-tie in 200 requests."""
    near_ties = 0
    for case, output in zip(cases, outputs, strict=True):
        got, expected = output.outputs[0].token_ids, case.token_ids
        assert len(got) == len(expected)
        if got == expected:
            continue
        at = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
        gap = reference.gap([*case.prompt_token_ids, *expected[:at]])
        assert gap < NEAR_TIE, f"{case.prompt.text[:40]!r} differs at token {at}, gap {gap:.2e}"
        near_ties += 1
    assert near_ties <= max(1, len(cases) // 200)
