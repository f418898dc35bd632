"""Events as the engine sends them, with numbers set by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import FinishedRequest, Started, StepDone
from tokenmill.core.contract.registry import PluginContext
from tokenmill.core.interfaces import ModelInfo
from tokenmill.core.outputs import FinishReason


def started(device: str = "cpu", windows: Sequence[int | None] = (None,)) -> Started:
    info = ModelInfo(
        name="smol",
        architecture="llama",
        dtype="bfloat16",
        device=device,
        vocab_size=64,
        max_model_len=100,
        eos_token_ids=(0,),
        num_parameters=1,
        block_size=16,
        num_blocks=10,
        kv_bytes_per_block=1024,
        kv_windows=tuple(windows),
    )
    return Started(info=info, model_name="smol", max_model_len=100)


def step_done(**changes: Any) -> StepDone:
    values: dict[str, Any] = {
        "step_id": 1,
        "seconds": 0.01,
        "num_prompt_tokens": 30,
        "num_generation_tokens": 2,
        "num_running": 2,
        "num_waiting": 1,
        "kv_cache_usage": 0.25,
        "prefix_cache_queries": 40,
        "prefix_cache_hits": 10,
        "time_to_first_tokens": (0.03,),
        "inter_token_latencies": (0.02, 100.0),
        "mm_cache_queries": 3,
        "mm_cache_hits": 1,
    }
    return StepDone(**{**values, **changes})


def finished_request(**changes: Any) -> FinishedRequest:
    values: dict[str, Any] = {
        "request_id": "a",
        "finish_reason": FinishReason.LENGTH,
        "num_prompt_tokens": 30,
        "num_generation_tokens": 5,
        "num_cached_tokens": 10,
        "num_preemptions": 1,
        "max_tokens": 5,
        "n": 1,
        "e2e_latency": 1.0,
        "queue_time": 0.1,
        "prefill_time": 0.5,
        "decode_time": 0.4,
    }
    return FinishedRequest(**{**values, **changes})


def context(**config: Any) -> PluginContext:
    return PluginContext(config=EngineConfig(**config))
