"""The search against the full grid, in the simulator."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.planning.step_time import bundled_step_times
from tokenmill.planning.workload import SyntheticWorkload
from tokenmill.tuning.capacity import Planner
from tokenmill.tuning.limits import Limits
from tokenmill.tuning.search import search
from tokenmill.tuning.space import make_space
from tokenmill.tuning.traffic import Traffic

LIMITS = ((), ("ttft:2000",), ("itl:150",), ("ttft:8000", "itl:150"), ("e2el:15000",))
BASE = EngineConfig(swap_space=1.0)
SPACE = make_space(
    BASE,
    {
        "max_num_seqs": (4, 8, 16, 32),
        "max_num_batched_tokens": (64, 128, 256, 512, 1024),
        "long_prefill_token_threshold": (64, 256),
        "scheduler": ("prefill-first",),
    },
)


def make_planner(seed: int) -> Planner:
    """A workload, a size of the KV cache and limits at random."""
    rng = random.Random(seed)
    workload = SyntheticWorkload(
        num_prompts=24,
        random_input_len=rng.choice([32, 128, 400]),
        random_output_len=rng.choice([8, 24, 48]),
        random_range_ratio=rng.choice([0.0, 0.5, 0.9]),
        random_prefix_len=rng.choice([0, 64]),
        seed=seed,
    )
    traffic = Traffic(
        requests=workload.draw(), is_trace=False, burstiness=rng.choice([1.0, 0.3]), seed=seed
    )
    times, blocks = bundled_step_times(), rng.choice([48, 100, 400])
    base = EngineConfig(num_gpu_blocks_override=blocks, swap_space=1.0)
    return Planner(traffic, base, times, Limits.parse(rng.choice(LIMITS)))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(20))
def test_a_tenth_of_the_grid_is_enough(tmp_path: Path, seed: int) -> None:
    planner = make_planner(seed)
    found = search(planner, SPACE, SPACE.size // 10, tmp_path, seed, lambda count, trial: None)
    best = max(
        planner.capacity(SPACE.settings(dict(zip(SPACE.values, indexes, strict=True)))).goodput
        for indexes in SPACE.combinations()
    )
    assert found[0].capacity.goodput >= 0.97 * best
