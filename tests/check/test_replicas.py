"""Two replicas give the tokens of one engine with the real model, and survive twenty failures."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.toy_process import toy_process
from tests.backends.tiny import make_prompt
from tests.backends.tiny_checkpoints import TARGET, write_model
from tests.server_process import running_server
from tokenmill import LLM, AsyncEngine, EngineStoppedError, OutputKind, SamplingParams
from tokenmill.assembly import build_supervised_engine
from tokenmill.config import CompilationConfig, CompilationLevel
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import EngineClient
from tokenmill.core.interfaces import no_progress
from tokenmill.core.processes.place import Place
from tokenmill.core.shell.engine_shell import EngineShell

NUM_FAILURES = 20
FAULTS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
PATIENCE = 120.0
PAIRS: dict[str, dict[str, Any]] = {
    "preemption and chunks": {"num_gpu_blocks_override": 40, "max_num_batched_tokens": 32},
    "swap and speculation": {
        "num_gpu_blocks_override": 40,
        "preemption_mode": "swap",
        "speculative_method": "ngram",
    },
    "round robin without a prefix cache": {
        "router": "round-robin",
        "enable_prefix_caching": False,
    },
}


def replicas(**options: Any) -> EngineShell:
    config = EngineConfig(dtype="float32", data_parallel_size=2, disable_log_stats=True, **options)
    return build_supervised_engine(config, no_progress, stall_timeout=10.0, max_restarts=100)


def prompts(number: int = 16) -> list[list[int]]:
    """Prompts; several of them have a common beginning."""
    rng = random.Random(7)
    starts = [rng.choices(range(256, 49000), k=48) for _ in range(4)]
    return [starts[i % 4] + rng.choices(range(256, 49000), k=1 + i) for i in range(number)]


def params_of(number: int) -> SamplingParams:
    """Half of them draw. Among all tokens, draws after random prompts are often so near the border
    of two tokens that rounding, which depends on the CPU and the batch, decides."""
    if number % 2:
        return SamplingParams(
            temperature=0.8, top_k=20, seed=number, max_tokens=24, ignore_eos=True
        )
    return SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


async def whole(engine: EngineClient, prompt: list[int], params: SamplingParams) -> tuple[int, ...]:
    """The tokens of an answer that is read only at its end."""
    final = params.with_changes(output_kind=OutputKind.FINAL)
    [output] = [output async for output in engine.generate(prompt, final)]
    return output.outputs[0].token_ids


async def answers(engine: EngineClient) -> list[tuple[int, ...]]:
    asked = (whole(engine, prompt, params_of(i)) for i, prompt in enumerate(prompts()))
    return await asyncio.gather(*asked)


@pytest.mark.parametrize("pair", PAIRS)
def test_replicas_generate_the_tokens_of_one_engine(pair: str) -> None:
    options = PAIRS[pair]

    async def compare() -> None:
        alone = {name: value for name, value in options.items() if name != "router"}
        async with AsyncEngine(dtype="float32", disable_log_stats=True, **alone) as engine:
            expected = await answers(engine)
        async with replicas(**options) as engine:
            assert await answers(engine) == expected
            assert await answers(engine) == expected, "with a full prefix cache"
            await engine.refresh()
            served = [
                one.board.progress.num_finished > 0 for _, one in engine.running.replicas.serving()
            ]
            assert served == [True, True]

    asyncio.run(compare())


def test_a_program_has_replicas_with_the_tokens_of_one_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unused = {
        "compilation_config": CompilationConfig(level=CompilationLevel.PIECEWISE),
        "cudagraph_capture_sizes": [1, 2, 4],
        "limit_mm_per_prompt": {"image": {"count": 1}},
    }
    params = [params_of(i) for i in range(16)]
    found = []
    for size in (1, 2):
        with LLM(dtype="float32", disable_log_stats=True, data_parallel_size=size, **unused) as llm:
            outputs = llm.generate(prompts(), params, use_tqdm=False)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]
    warned = [record for record in caplog.records if record.msg == "setting_without_effect"]
    assert len(warned) == 2 * len(unused), "once for each LLM, not for each replica"


def test_twenty_failures_in_a_row_cost_no_answer_that_has_not_begun() -> None:
    """Without a model, because loading it twenty times takes minutes."""

    async def run() -> None:
        engine = toy_process(places=(Place(), Place()), stall_timeout=1.0, max_restarts=100)
        async with engine:
            expected = await toy_answers(engine)
            ends = [await fail_one(engine, number, expected) for number in range(NUM_FAILURES)]
            assert any(ends) and not all(ends), "streams of the lost replica and of the other one"
            await wait_until_all_serve(engine)
            await engine.refresh()
            load = engine.load()
            assert (load.num_running, load.num_waiting, load.kv_cache_usage) == (0, 0, 0)

    asyncio.run(run())


async def toy_answers(engine: EngineClient) -> list[tuple[int, ...]]:
    params = SamplingParams(seed=5, max_tokens=100, ignore_eos=True)
    return await asyncio.gather(*(whole(engine, [97, 98, i], params) for i in range(8)))


async def fail_one(engine: EngineShell, number: int, expected: list[tuple[int, ...]]) -> bool:
    """Let a replica fail while both have work. Returns whether the begun stream was lost."""
    await wait_until_all_serve(engine)
    begun = engine.generate(f"story {number}", SamplingParams(max_tokens=200, ignore_eos=True))
    await anext(begun)
    others = asyncio.ensure_future(toy_answers(engine))
    await asyncio.sleep(random.Random(number).uniform(0, 0.3))
    link = engine.running.replicas.supervisors[number % 2].ready_link
    assert link is not None
    os.kill(link.pid, FAULTS[number % len(FAULTS)])
    assert await asyncio.wait_for(others, PATIENCE) == expected
    await asyncio.wait_for(asyncio.shield(link.lost), PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.kill(link.pid, 0)
    try:
        async for _ in begun:
            pass
    except EngineStoppedError:
        return True
    return False


async def wait_until_all_serve(engine: EngineShell) -> None:
    end = time.monotonic() + PATIENCE
    while not all(load.is_alive for load in engine.load().replicas):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def test_the_replicas_of_a_killed_server_end(tmp_path: Path) -> None:
    flags = ("--data-parallel-size", "2", "--num-gpu-blocks-override", "300")
    with running_server(tmp_path, *flags) as server:
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 2
        server.process.kill()
        end = time.monotonic() + PATIENCE
        while any(Path("/proc", child).exists() for child in children):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_two_replicas_of_two_ranks_serve_the_tokens_of_one_process(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m", TARGET, 1)
    bodies = [
        {"model": "m", "prompt": make_prompt(5 + 7 * i, seed=i % 3), "max_tokens": 24, "seed": i}
        | ({"temperature": 0} if i % 2 else {"temperature": 0.8})
        | {"ignore_eos": True, "return_token_ids": True}
        for i in range(8)
    ]
    flags = ["--dtype", "float32", "--device", "cpu", "--num-gpu-blocks-override", "40"]
    found = []
    for ranks in ("1", "2"):
        sizes = ("--data-parallel-size", ranks, "--tensor-parallel-size", ranks)
        with running_server(tmp_path, "--model", str(model), *flags, *sizes) as server:
            with ThreadPoolExecutor(len(bodies)) as threads:
                found.append(list(threads.map(partial(completion, server.url), bodies)))
            metrics = httpx.get(f"{server.url}/metrics").text
    assert found[0] == found[1]
    served = re.findall(
        r'^tokenmill:generation_tokens_total\{engine="(\d)".*\} (\S+)$', metrics, re.M
    )
    assert [engine for engine, tokens in served if float(tokens) > 0] == ["0", "1"]


def completion(url: str, body: dict[str, Any]) -> list[int]:
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    token_ids: list[int] = answer.raise_for_status().json()["choices"][0]["token_ids"]
    return token_ids
