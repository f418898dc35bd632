"""Serves the prompts on the real model, as any program would, and counts what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tokenmill import LLM, SamplingParams

from .comparison import Served
from .reference import ReferenceCase
from .settings import Setting


def serve(
    setting: Setting, cases: Sequence[ReferenceCase], num_starved_tokens: int, **options: Any
) -> Served:
    """All cases at once; a starved KV cache has room for few tokens. `options` are the engine's,
    beside those of the setting."""
    num_blocks = num_starved_tokens // setting.block_size if setting.is_starved else None
    with LLM(
        disable_log_stats=True,
        num_gpu_blocks_override=num_blocks,
        swap_space=0.25,
        **setting.options(),
        **options,
    ) as llm:
        outputs = llm.generate(
            [case.prompt_token_ids for case in cases],
            [_greedy(case) for case in cases],
            use_tqdm=False,
        )
        attention_backend = llm.engine.info.attention_backend
        metrics = llm.engine.render_metrics().decode()
    num_swaps = _count(metrics, "num_preemptions_by_mode", mode="swap")
    return Served(
        attention_backend=attention_backend,
        token_ids=[output.outputs[0].token_ids for output in outputs],
        num_preempted=sum(o.metrics is not None and o.metrics.num_preemptions > 0 for o in outputs),
        num_preemptions=_count(metrics, "num_preemptions"),
        num_swaps=num_swaps,
        num_hit_tokens=sum(output.num_cached_tokens for output in outputs),
        num_draft_tokens=_count(metrics, "spec_decode_num_draft_tokens"),
        num_accepted_tokens=_count(metrics, "spec_decode_num_accepted_tokens"),
    )


def _greedy(case: ReferenceCase) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=len(case.token_ids), ignore_eos=True)


def _count(metrics: str, name: str, **labels: str) -> int:
    """What Prometheus is told."""
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == f"tokenmill:{name}_total" and labels.items() <= sample.labels.items():
                return int(sample.value)
    raise AssertionError(f"the metric {name} is missing")
