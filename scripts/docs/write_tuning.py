"""Writes docs/tuning.md from the code: what each setting of vLLM's tuning guides does here.

python scripts/docs/write_tuning.py

tests/docs/test_tuning.py compares the file with the code, and gives each line to the command line
and to a program.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenmill.core.config import EngineConfig
from tokenmill.core.settings.declaration import arguments, flag
from tokenmill.core.settings.refused import REFUSED

PAGE = Path(__file__).parents[2] / "docs/tuning.md"

VIDEO = {"count": 1, "num_frames": 32, "width": 640, "height": 640}
ACCEPTED: tuple[tuple[str, Any], ...] = (
    ("gpu_memory_utilization", 0.95),
    ("kv_cache_memory_bytes", 1 << 30),
    ("num_gpu_blocks_override", 1000),
    ("max_num_seqs", 128),
    ("max_num_batched_tokens", 16384),
    ("tensor_parallel_size", 4),
    ("pipeline_parallel_size", 2),
    ("enable_expert_parallel", True),
    ("data_parallel_size", 2),
    ("distributed_executor_backend", "mp"),
    ("enable_chunked_prefill", True),
    ("long_prefill_token_threshold", 2048),
    ("scheduling_policy", "priority"),
    ("async_scheduling", True),
    ("preemption_mode", "swap"),
    ("swap_space", 4.0),
    ("max_model_len", 2048),
    ("block_size", 32),
    ("enable_prefix_caching", True),
    ("kv_cache_dtype", "fp8"),
    ("quantization", "awq"),
    ("hf_overrides", {"rope_parameters": {"rope_theta": 1000000}}),
    ("dtype", "bfloat16"),
    ("device", "cpu"),
    ("attention_backend", "FLASH_ATTN"),
    ("disable_log_stats", False),
    ("enforce_eager", True),
    ("compilation_config", 3),
    ("compilation_config", {"level": 3, "cudagraph_capture_sizes": [1, 2, 4, 8, 16]}),
    ("compilation_config", {"mode": 3, "cudagraph_mode": "FULL_DECODE_ONLY"}),
    ("optimization_level", 0),
    ("cudagraph_capture_sizes", [1, 2, 4, 8]),
    ("max_cudagraph_capture_size", 512),
    ("limit_mm_per_prompt", {"image": 3, "video": 1}),
    ("limit_mm_per_prompt", {"image": {"count": 5, "width": 512, "height": 512}, "video": VIDEO}),
    ("speculative_config", {"method": "ngram", "num_speculative_tokens": 5}),
    ("speculative_method", "ngram"),
    ("speculative_model", "path/to/model"),
    ("num_speculative_tokens", 5),
    ("spec_method", "ngram"),
    ("spec_model", "path/to/model"),
    ("spec_tokens", 5),
)
"""An argument and a value for each line of the guides that is accepted."""

INTRODUCTION = """\
# Tuning, if you know vLLM

This page is generated from the code: `make docs` writes it. It lists the settings of vLLM's guides
("Optimization and Tuning", "Conserving Memory", "Performance and Tuning", versions 0.4 to 0.32),
and what each does here. Flags work with `tokenmill serve`, arguments with `LLM` and `AsyncEngine`;
`data_parallel_size` works with `LLM`, but not with `AsyncEngine`. If a setting has no effect on the
device or with the model, the log has a warning, `setting_without_effect`, with the reason.

`-O0` to `-O3` are short forms of `--optimization-level`, and `-cc` of `--compilation-config`. In a
program, `compilation_config` also takes the names of vLLM:

```python
from tokenmill import LLM
from tokenmill.config import CompilationConfig, CompilationLevel

config = CompilationConfig(level=CompilationLevel.PIECEWISE, cudagraph_capture_sizes=[1, 2, 4, 8])
llm = LLM(compilation_config=config)
```

`CompilationMode` and `CUDAGraphMode` are there, too.
"""

PREEMPTION = """\
## Preemption

When no KV block is free, a request is preempted, and the log warns at the 1st, 10th, 100th, ...
preemption: `request_preempted`, with `total_cumulative_preemption_cnt` and with what to change:
more memory for the KV cache (`--gpu-memory-utilization`, `--kv-cache-memory`), lower
`--max-num-seqs` or `--max-num-batched-tokens`, or higher `--tensor-parallel-size` or
`--pipeline-parallel-size`. The line of statistics has the same count every 10 seconds, and the
metric `num_preemptions` counts, too.
"""

ABSENT = (
    (
        "experts over the product of tensor and data parallel ranks",
        "replicas are independent: one can crash, restart or drain while the others serve. Experts "
        "that are shared among them would need a step of all replicas at once. "
        "`--enable-expert-parallel` divides experts over the ranks of one replica",
    ),
    (
        "page sizes, padding and other settings of TPUs (`VLLM_TPU_MOST_MODEL_LEN`, "
        "`VLLM_TPU_BUCKET_PADDING_GAP`, `VLLM_XLA_CACHE_PATH`)",
        "there is no backend for TPUs. `--block-size` has the sizes that the kernels for CPUs and "
        "GPUs support",
    ),
    (
        "torch.compile, and CUDA graphs of steps with prompts",
        "CUDA graphs are captured of steps in which all requests decode; other steps run eagerly. "
        "Only kernels are compiled, once, on their first use",
    ),
    (
        "video and audio",
        "the engine takes texts and [images](serving/images.md)",
    ),
    ("`VLLM_CPU_KVCACHE_SPACE`", "`--kv-cache-memory`"),
    ("`VLLM_CPU_OMP_THREADS_BIND`", "`--cpu-bind`"),
    ("`VLLM_ATTENTION_BACKEND`", "`--attention-backend`"),
    ("`VLLM_LOG_STATS_INTERVAL`", "`interval` in the table `[observer.stats-log]` of plugins.toml"),
    ("`VLLM_USE_V1`", "there is one engine"),
    ("`auto_tune.sh`", "`tokenmill tune`, see [tune](tune.md)"),
    (
        "`vllm bench throughput --input-tokens N --output-tokens N`",
        "`benchmarks/throughput.py` and `tokenmill simulate compare` have both flags",
    ),
)
"""What the guides describe and the engine does not have, with the reason or the replacement."""


def page() -> str:
    """The page, as the code is now."""
    help_of = {
        name: field.metadata["help"]
        for field in dataclasses.fields(EngineConfig)
        for name in arguments(field)
    }
    return "\n".join(
        (
            INTRODUCTION,
            PREEMPTION,
            "## Accepted\n",
            *table("argument", "flag", "here"),
            *row_of_each((argument(*s), flags(*s), help_of[s[0]]) for s in ACCEPTED),
            "\n## Refused, with what to use instead\n",
            *table("argument", "flag", "instead"),
            *row_of_each((f"`{n}`", f"`{flag(n)}`", text) for n, text in REFUSED.items()),
            "\n## Absent\n",
            *table("in vLLM", "here"),
            *row_of_each(ABSENT),
            "",
        )
    )


def argument(name: str, value: object) -> str:
    return f"`{name}={value!r}`"


def flags(name: str, value: object) -> str:
    return f"`{shlex.join(command_line(name, value))}`"


def command_line(name: str, value: object) -> Sequence[str]:
    """A setting in the words of a command."""
    if isinstance(value, bool):
        return [flag(name if value else f"no_{name}")]
    if isinstance(value, list):
        return [flag(name), *map(str, value)]
    return [flag(name), json.dumps(value) if isinstance(value, dict) else str(value)]


def table(*titles: str) -> tuple[str, str]:
    return f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"


def row_of_each(rows: Any) -> list[str]:
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
