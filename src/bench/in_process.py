"""Measures an engine in this process: the time of a batch, and the throughput of many requests."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.contract.client import EngineClient
from ..core.outputs import RequestOutput
from ..core.requests.sampling_params import OutputKind, SamplingParams

PERCENTILES = (10, 25, 50, 75, 90, 99)
TokenIds = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The figures of a run of many requests."""

    seconds: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int

    def fields(self, model: str) -> dict[str, Any]:
        """The fields of vLLM's file."""
        total = self.num_prompt_tokens + self.num_output_tokens
        return {
            "model_id": model,
            "elapsed_time": self.seconds,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "requests_per_second": self.num_requests / self.seconds,
            "tokens_per_second": total / self.seconds,
        }


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> list[TokenIds]:
    """Prompts of random tokens. The first ones, which are often special, are left out."""
    rng = random.Random(seed)
    first = min(256, vocab_size // 2)
    return [rng.choices(range(first, vocab_size), k=length) for _ in range(count)]


def params(output_len: int, n: int, temperature: float) -> SamplingParams:
    """Parameters with which every answer has `output_len` tokens."""
    return SamplingParams(
        n=n,
        temperature=temperature,
        max_tokens=output_len,
        ignore_eos=True,
        output_kind=OutputKind.FINAL,
    )


async def answer_all(
    engine: EngineClient, prompts: Sequence[TokenIds], params: SamplingParams
) -> list[RequestOutput]:
    """Give all prompts to the engine at once, and wait for the answers."""

    async def answer(prompt: TokenIds) -> RequestOutput:
        last: RequestOutput | None = None
        async for output in engine.generate(list(prompt), params):
            last = output
        assert last is not None
        return last

    return await asyncio.gather(*map(answer, prompts))


async def measure_throughput(
    engine: EngineClient, prompts: Sequence[TokenIds], params: SamplingParams
) -> Throughput:
    """Answer all prompts, and count."""
    start = time.perf_counter()
    outputs = await answer_all(engine, prompts, params)
    return Throughput(
        seconds=time.perf_counter() - start,
        num_requests=len(prompts),
        num_prompt_tokens=sum(map(len, prompts)),
        num_output_tokens=sum(len(one.token_ids) for o in outputs for one in o.outputs),
    )


async def measure_latency(
    engine: EngineClient,
    prompts: Sequence[TokenIds],
    params: SamplingParams,
    iterations: int,
    on_iteration: Callable[[int], None],
) -> list[float]:
    """Return the seconds of each iteration, in which all prompts are answered as one batch."""
    seconds = []
    for index in range(iterations):
        start = time.perf_counter()
        await answer_all(engine, prompts, params)
        seconds.append(time.perf_counter() - start)
        on_iteration(index + 1)
    return seconds


def latency_fields(model: str, seconds: Sequence[float]) -> dict[str, Any]:
    """The fields of vLLM's file."""
    found = np.percentile(seconds, PERCENTILES)
    return {
        "model_id": model,
        "avg_latency": float(np.mean(seconds)),
        "latencies": list(seconds),
        "percentiles": {str(p): float(v) for p, v in zip(PERCENTILES, found, strict=True)},
    }
