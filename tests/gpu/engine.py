"""A random model served by the whole engine, and how near its tokens are to the reference's."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import pytest
import torch

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.attention.base import AttentionSpec

from ..oracle import toy
from ..oracle.comparison import Served
from ..oracle.reference import ReferenceCase
from ..oracle.settings import MODES, SCHEDULERS, Setting
from .contenders import DEVICE, load_for

CONFIG = replace(toy.CONFIG, head_size=64)
"""The least that the kernels for GPUs take."""
CHECKPOINT = random_checkpoint(CONFIG, seed=0)
MOST_REGRET = 1.0
"""In half precision, by how much the best logit may exceed that of the token taken, of logits that
span about 11. Rounding costs 0.3; one token that is not seen costs 8."""
SIZES = ((8, 256), (16, 24), (32, 256), (8, 24), (16, 256))
"""Block size, and tokens per step: room for whole prompts, or for parts of most of them."""
SETTINGS = [
    Setting(
        scheduler=scheduler,
        preemption_mode=mode,
        enable_prefix_caching=caches,
        is_starved=is_starved,
        block_size=size,
        max_num_batched_tokens=budget,
    )
    for (scheduler, mode, caches, is_starved), (size, budget) in zip(
        product(SCHEDULERS, MODES, (True, False), (True, False)), cycle(SIZES), strict=False
    )
]


def serve(
    backend_name: str, setting: Setting, cases: Sequence[ReferenceCase], dtype: torch.dtype
) -> tuple[Served, list[ReferenceCase]]:
    """What an engine with this backend makes of the cases, in an order of the setting's own.
    "auto": with whichever it chooses."""
    if dtype is torch.float16 and DEVICE.type == "cpu":
        pytest.skip("the engine computes float16 on GPUs only")
    if backend_name != "auto":
        load_for(backend_name, spec_of(setting, dtype))
    chosen = random.Random(str(setting)).sample(cases, len(cases))
    served = toy.serve(
        setting,
        chosen,
        CHECKPOINT,
        device=DEVICE.type,
        dtype=str(dtype).removeprefix("torch."),
        attention_backend=backend_name,
        cudagraph_capture_sizes=[1, 2, 4, 8, 16, 24],
        swap_space=2**-6,  # its heads are four times as large as the toy's own
    )
    assert backend_name in (served.attention_backend, "auto")
    return served, chosen


def spec_of(setting: Setting, dtype: torch.dtype) -> AttentionSpec:
    """What the engine will ask of the backend."""
    return AttentionSpec(
        num_heads=CONFIG.num_heads,
        num_kv_heads=CONFIG.num_kv_heads,
        head_size=CONFIG.head_size,
        block_size=setting.block_size,
        dtype=dtype,
        device=DEVICE,
        scale=CONFIG.attention_scale,
    )


def largest_regret(
    model: Any, cases: Sequence[ReferenceCase], outputs: Sequence[Sequence[int]]
) -> float:
    """By how much the reference prefers another token to one that was taken, at most."""
    worst = 0.0
    for case, output in zip(cases, outputs, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*case.prompt_token_ids, *output]])).logits[0]
        choices = logits[len(case.prompt_token_ids) - 1 : -1]
        taken = choices.gather(1, torch.tensor(output)[:, None]).squeeze(1)
        worst = max(worst, float((choices.max(-1).values - taken).max()))
    return worst
