"""Models with windows serve transformers' tokens, and keep only the KV that their layers see.

If every layer has a window, the KV cache may be smaller than a request. If some layers have none,
only these keep the KV of all tokens.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.config.kv_groups import group_layers
from tokenmill.core.config import EngineConfig
from tokenmill.core.engine.request import Request
from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.testing.engine_driver import EngineDriver

from ..backends.model_engine import make_driver, make_request
from ..backends.tiny import GREEDY
from . import toy
from .architectures import WINDOW, write
from .comparison import find_near_ties
from .reference import ReferenceCase, gap
from .settings import Setting
from .speculating import speculate
from .test_architectures import make_cases

CHUNK = 12
BLOCK_SIZE = 8
NUM_TOKENS = 24
ENOUGH_BLOCKS = 6
"""Blocks of a window and a chunk, which may begin with the last token of a block."""
STARVED = {"block_size": BLOCK_SIZE, "is_starved": True, "max_num_batched_tokens": CHUNK}


def serve_starved(
    setting: Setting,
    cases: list[ReferenceCase],
    checkpoint: Checkpoint,
    attention_backend: str,
    num_blocks: int,
) -> toy.Served:
    """Serve with too few blocks, with drafts; everything that the setting asks for has happened."""
    served = toy.serve(
        setting,
        cases,
        checkpoint,
        attention_backend=attention_backend,
        num_gpu_blocks_override=num_blocks,
        **speculate("ngram", 3),
    )
    assert served.attention_backend == attention_backend
    assert served.num_preempted > 0
    assert (served.num_swaps > 0) is setting.swaps
    assert served.num_hit_tokens > 0
    assert served.num_draft_tokens > 0
    return served


@pytest.mark.parametrize("attention_backend", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("mistral", Setting(scheduler="chunked", **STARVED)),
        ("phi3", Setting(scheduler="prefill-first", preemption_mode="swap", **STARVED)),
    ],
)
def test_tokens_are_those_of_transformers(
    name: str, setting: Setting, attention_backend: str, tmp_path: Path
) -> None:
    model, (path, *_) = write(name, tmp_path)
    cases = make_cases(model, toy.make_prompts()[4::2], NUM_TOKENS)
    longest = max(len(case.prompt_token_ids) for case in cases) + NUM_TOKENS
    num_blocks = ENOUGH_BLOCKS + 3
    assert longest > num_blocks * BLOCK_SIZE
    served = serve_starved(setting, cases, open_checkpoint(path), attention_backend, num_blocks)
    find_near_ties(partial(gap, model), cases, served.token_ids)


@pytest.mark.parametrize("attention_backend", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("gemma3", Setting(scheduler="chunked", **STARVED)),
        ("gpt-oss", Setting(scheduler="prefill-first", preemption_mode="swap", **STARVED)),
    ],
)
def test_layers_with_and_without_a_window_share_a_starved_cache(
    name: str, setting: Setting, attention_backend: str, tmp_path: Path
) -> None:
    model, (path, *_) = write(name, tmp_path)
    cases = make_cases(model, toy.make_prompts()[4::2], NUM_TOKENS)
    checkpoint = open_checkpoint(path)
    num_windowed = len(group_layers(checkpoint.config, None).windows) - 1
    longest = max(len(case.prompt_token_ids) for case in cases) + NUM_TOKENS
    assert longest >= 4 * WINDOW
    num_blocks = -(-longest // BLOCK_SIZE) + num_windowed * ENOUGH_BLOCKS + 3
    served = serve_starved(setting, cases, checkpoint, attention_backend, num_blocks)
    find_near_ties(partial(gap, model), cases, served.token_ids)


@pytest.mark.parametrize("attention_backend", ["cpu", "torch"])
@pytest.mark.parametrize(("name", "num_blocks"), [("mistral", 6), ("gpt-oss", 24), ("gemma3", 54)])
def test_nobody_sees_what_is_written_behind_a_window(
    name: str, num_blocks: int, attention_backend: str, tmp_path: Path
) -> None:
    """All blocks that no request holds get numbers that would change every token."""
    model, (path, *_) = write(name, tmp_path)
    cases = make_cases(model, [toy.make_prompts()[11]], 2 * NUM_TOKENS)
    config = make_config(num_blocks, attention_backend=attention_backend)
    driver = open_driver(path, config)
    (request,) = queue(driver, config, [case.prompt_token_ids for case in cases], 2 * NUM_TOKENS)
    num_spoiled = 0
    while driver.core.has_work:
        driver.step()
        num_spoiled += spoil_unused_blocks(driver)
        for table, window in zip(request.tables, driver.core.pool.windows, strict=False):
            assert window is None or len(table.block_ids) <= ENOUGH_BLOCKS
    find_near_ties(partial(gap, model), cases, [request.token_ids[request.num_prompt_tokens :]])
    assert num_spoiled > 0 and driver.core.pool.num_held == 0


def test_layers_without_a_window_keep_the_blocks_of_all_tokens(tmp_path: Path) -> None:
    _, (path, *_) = write("qwen2, a window in two layers", tmp_path)
    config = make_config()
    driver = open_driver(path, config)
    assert driver.executor.info.kv_windows == (None, WINDOW)
    with pytest.raises(InvalidRequestError, match=f"the cache has {ENOUGH_BLOCKS}"):
        queue(driver, config, [toy.make_prompts()[11]], NUM_TOKENS)


def make_config(num_blocks: int = ENOUGH_BLOCKS, **options: str) -> EngineConfig:
    return EngineConfig(
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=4,
        num_gpu_blocks_override=num_blocks,
        enable_prefix_caching=False,
        watermark=0.0,
        **options,  # type: ignore[arg-type]
    )


def open_driver(path: Path, config: EngineConfig) -> EngineDriver:
    host = PluginHost.load(config)
    return make_driver(open_checkpoint(path), config, host, host.speculator)


def queue(
    driver: EngineDriver, config: EngineConfig, prompts: list[tuple[int, ...]], num_tokens: int
) -> list[Request]:
    params = GREEDY.with_changes(max_tokens=num_tokens, ignore_eos=True)
    info = driver.executor.info
    requests = [
        make_request(str(i), prompt, params, 0, info=info, config=config)
        for i, prompt in enumerate(prompts)
    ]
    driver.queue(requests)
    return requests


def spoil_unused_blocks(driver: EngineDriver) -> int:
    """Overwrite the blocks that no request holds; returns their number."""
    assert isinstance(driver.executor, ModelExecutor)
    held = {block for request in driver.requests.values() for block in request.block_ids}
    unused = [block for block in range(driver.core.pool.num_blocks) if block not in held]
    runner = driver.executor._runner
    assert runner is not None
    for layer in runner._kv_cache.tensors:
        blocks = layer.transpose(0, 1) if layer.shape[0] == 2 else layer
        with torch.inference_mode():
            blocks[unused] = 1e9
    return len(unused)
