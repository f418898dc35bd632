"""Step times that a reader can add up in his head, for the tests of the planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import ModelInfo
from tokenmill.planning.outcome import Outcome
from tokenmill.planning.step_time import StepTimeModel, StepTimes
from tokenmill.planning.virtual_run import VirtualRun
from tokenmill.planning.workload import PlannedRequest

PER_TOKEN = StepTimeModel(tokens=((1, 0.001), (2, 0.002)), overhead_per_step=0.01)
"""A millisecond for each token, ten for each step."""


def make_info(**changes: Any) -> ModelInfo:
    """A model with 64 blocks of 16 tokens of a byte."""
    fields: dict[str, Any] = {
        "name": "toy",
        "architecture": "Toy",
        "dtype": "float32",
        "device": "cpu",
        "vocab_size": 1000,
        "max_model_len": 4096,
        "eos_token_ids": (0,),
        "num_parameters": 0,
        "block_size": 16,
        "num_blocks": 64,
        "num_host_blocks": 64,
        "kv_bytes_per_block": 16,
    }
    return ModelInfo(**{**fields, **changes})


def make_times(model: StepTimeModel = PER_TOKEN, **info: Any) -> StepTimes:
    """A step-time file's content."""
    return StepTimes(
        date="2026-01-01",
        machine={"processor": "paper", "threads": 1},
        model=make_info(**info),
        step_time=model,
        num_fitted_steps=1,
        num_rounds=1,
        median_relative_error=0.0,
        checked=(),
    )


def make_request(
    number: int, length: int, max_tokens: int, at: float = 0.0, **fields: Any
) -> PlannedRequest:
    """A prompt that begins unlike all others."""
    prompt = tuple((number * 7919 + i) % 30_000 for i in range(length))
    return PlannedRequest(at=at, prompt_token_ids=prompt, max_tokens=max_tokens, **fields)


def run(
    requests: Sequence[PlannedRequest], *, times: StepTimes | None = None, **options: Any
) -> Outcome:
    """What comes of the requests under these engine settings."""
    config = EngineConfig(disable_log_stats=True, **options)
    return VirtualRun(requests, config, times or make_times()).run()
