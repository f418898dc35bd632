"""Planners whose best setting is known."""

from __future__ import annotations

from tokenmill.core.config import EngineConfig
from tokenmill.planning.step_time import StepTimeModel
from tokenmill.tuning.capacity import Planner
from tokenmill.tuning.limits import Limits
from tokenmill.tuning.space import Space, make_space
from tokenmill.tuning.traffic import Traffic

from ..planning.planning import PER_TOKEN, make_request, make_times

BASE = EngineConfig()
CLIFF = StepTimeModel(tokens=((1, 0.001), (128, 0.002), (129, 1.0), (4096, 2.0)))
"""Steps of more than 128 tokens are slow."""


def make_planner(model: StepTimeModel = PER_TOKEN, *limits: str) -> Planner:
    """Twelve requests with prompts of 100 tokens and answers of 4."""
    requests = [make_request(number, 100, 4) for number in range(12)]
    traffic = Traffic(requests=requests, is_trace=False)
    times = make_times(model, num_blocks=200)
    return Planner(traffic, BASE, times, Limits.parse(limits))


def make_cliff_space() -> Space:
    """36 combinations, of which those with steps of 128 tokens are the best ones."""
    sizes = {"max_num_batched_tokens": (32, 64, 128, 256, 512), "max_num_seqs": (2, 4, 8, 16, 32)}
    return make_space(BASE, sizes)
