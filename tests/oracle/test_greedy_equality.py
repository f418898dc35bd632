"""Greedy fp32 output is transformers' own, token for token, whatever engine and memory do meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tokenmill import LLM, SamplingParams
from tokenmill.core.outputs import RequestOutput

from .prompts import NUM_TOKENS, all_prompts
from .reference import NEAR_TIE, Reference, ReferenceCase

STARVED = {8: 110, 16: 48, 32: 26}
"""KV blocks, by block size: room for two or three of the longest requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to serve the prompts; together they cover every pair of choices."""

    scheduler: str
    preemption_mode: str = "recompute"
    enable_prefix_caching: bool = True
    block_size: int = 16
    is_starved: bool = False
    max_num_batched_tokens: int = 2048
    is_long: bool = False
    """Let the prompts that have it run to 256 tokens, not only to 48."""

    def options(self) -> dict[str, Any]:
        return {
            "scheduler": self.scheduler,
            "preemption_mode": self.preemption_mode,
            "enable_prefix_caching": self.enable_prefix_caching,
            "block_size": self.block_size,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "num_gpu_blocks_override": STARVED[self.block_size] if self.is_starved else None,
            "swap_space": 0.25,
            "watermark": 0.0,
        }

    def __str__(self) -> str:
        words = [self.scheduler, self.preemption_mode, f"blocks-of-{self.block_size}"]
        words += ["starved"] * self.is_starved + ["uncached"] * (not self.enable_prefix_caching)
        words += [f"chunks-of-{self.max_num_batched_tokens}"] * (self.max_num_batched_tokens < 2048)
        return "-".join(words)


SETTINGS = [
    Setting(scheduler="chunked", is_long=True),
    Setting(scheduler="prefill-first", block_size=32, is_long=True),
    Setting(scheduler="chunked", block_size=8, max_num_batched_tokens=32, is_long=True),
    Setting(
        scheduler="prefill-first",
        block_size=8,
        is_starved=True,
        max_num_batched_tokens=40,
        is_long=True,
    ),
    Setting(scheduler="chunked", enable_prefix_caching=False, is_starved=True),
    Setting(scheduler="chunked", preemption_mode="swap", block_size=32, is_starved=True),
    Setting(
        scheduler="prefill-first",
        preemption_mode="swap",
        enable_prefix_caching=False,
        is_starved=True,
        max_num_batched_tokens=48,
    ),
    Setting(
        scheduler="chunked",
        preemption_mode="swap",
        block_size=8,
        is_starved=True,
        max_num_batched_tokens=64,
    ),
    Setting(
        scheduler="prefill-first", preemption_mode="swap", enable_prefix_caching=False, block_size=8
    ),
    Setting(scheduler="prefill-first", enable_prefix_caching=False, block_size=32, is_starved=True),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_tokens_are_those_of_transformers(
    setting: Setting, reference: Reference, cases: list[ReferenceCase]
) -> None:
    chosen = [case if setting.is_long else case.shortened(NUM_TOKENS) for case in cases]
    chosen = random.Random(str(setting)).sample(chosen, len(chosen))
    with LLM(dtype="float32", disable_log_stats=True, **setting.options()) as llm:
        outputs = llm.generate(
            [case.prompt_token_ids for case in chosen],
            [greedy(case) for case in chosen],
            use_tqdm=False,
        )
        metrics = llm.engine.render_metrics().decode()
    assert_equal_but_for_near_ties(reference, chosen, outputs)
    preempted = sum(o.metrics is not None and o.metrics.num_preemptions > 0 for o in outputs)
    assert preempted >= len(cases) / 10 if setting.is_starved else preempted == 0
    assert (count(metrics, "swap") > 0) == (
        setting.is_starved and setting.preemption_mode == "swap"
    )
    assert any(o.num_cached_tokens for o in outputs) == setting.enable_prefix_caching


def count(metrics: str, mode: str) -> float:
    """Preemptions of this mode, as Prometheus is told."""
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "tokenmill:num_preemptions_total" and sample.labels["mode"] == mode:
                return sample.value
    raise AssertionError("the metric is missing")


def test_the_prompts_are_as_many_and_as_long_as_the_comparison_asks_for() -> None:
    prompts = all_prompts()
    assert len(prompts) >= 60
    assert sum(p.num_tokens >= 256 for p in prompts) >= 10
    assert all(p.num_tokens >= 48 for p in prompts)


def greedy(case: ReferenceCase) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=len(case.token_ids), ignore_eos=True)


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
