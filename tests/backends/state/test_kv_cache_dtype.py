"""A KV cache of 8 bits, from the flag to the tokens."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tokenmill import LLM, SamplingParams
from tokenmill.backends.attention.pair import BackendPair
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ..models.dense import compute_logits
from ..tiny import CONFIG, decoder, make_prompt
from ..tiny_checkpoints import write_model

KINDS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
PROMPTS = [make_prompt(30, 1), make_prompt(45, 2), make_prompt(30, 1) + make_prompt(9, 3)]
NUM_TOKENS = 12

by_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of `decoder`."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny", CONFIG, 5)


@functools.cache
def expected(prompt: tuple[int, ...], kind: str | None) -> tuple[int, ...]:
    """The greedy continuation, computed anew for every token over rounded keys and values."""
    token_ids = list(prompt)
    dtype = None if kind is None else KINDS[kind]
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            logits = compute_logits(decoder(), torch.tensor(token_ids), dtype)
            token_ids.append(int(logits[-1].argmax()))
    return tuple(token_ids[len(prompt) :])


def generate(model: Path, **options: object) -> list[tuple[int, ...]]:
    usual = {"device": "cpu", "dtype": "float32", "block_size": 8, "disable_log_stats": True}
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(model=str(model), **usual | options) as llm:
        outputs = llm.generate([list(prompt) for prompt in PROMPTS], params)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


def all_expected(kind: str | None) -> list[tuple[int, ...]]:
    return [expected(prompt, kind) for prompt in PROMPTS]


@by_kind
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "scheduler": "chunked"},
        {"num_gpu_blocks_override": 10, "preemption_mode": "recompute"},
        {"num_gpu_blocks_override": 10, "preemption_mode": "swap", "swap_space": 2**-6},
    ],
    ids=["ample", "in chunks", "recomputed", "swapped"],
)
def test_greedy_tokens_are_those_of_rounded_keys_and_values(
    kind: str, options: dict[str, object], model: Path
) -> None:
    """However the prompts are cut, and whether or not their blocks are shared or moved."""
    num_blocks = {"num_gpu_blocks_override": 64} | options
    tokens = generate(model, attention_backend="torch", kv_cache_dtype=kind, **num_blocks)
    assert tokens == all_expected(kind)


def test_a_draft_model_s_cache_is_of_the_same_type(model: Path, tmp_path: Path) -> None:
    """Its drafts change no token."""
    config = replace(CONFIG, num_layers=1)
    draft = write_model(tmp_path / "draft", config, 5)
    options = {"attention_backend": "torch", "kv_cache_dtype": "fp8", "num_gpu_blocks_override": 64}
    tokens = generate(model, **options, speculative_model=str(draft), num_speculative_tokens=3)
    assert tokens == all_expected("fp8_e4m3")


def test_rounding_is_seen_in_the_tokens() -> None:
    """Or else the tests above show nothing."""
    assert len({tuple(all_expected(kind)) for kind in (None, *KINDS)}) == 3


def load(backend: object, **options: object) -> ModelExecutor:
    usual = {"device": "cpu", "dtype": "float32", "num_gpu_blocks_override": 20}
    return ModelExecutor.from_checkpoint(
        random_checkpoint(CONFIG, 5),
        EngineConfig.from_options(**usual | options),
        backends_with(backend),
        no_progress,
        swaps=True,
    )


@pytest.mark.parametrize(
    ("name", "dtype", "num_bytes"),
    [
        ("auto", "float32", 4096),
        ("fp8", "float8_e4m3fn", 1024),
        ("fp8_e4m3", "float8_e4m3fn", 1024),
        ("fp8_e5m2", "float8_e5m2", 1024),
    ],
)
def test_the_model_says_what_its_cache_holds_and_blocks_are_counted_by_it(
    name: str, dtype: str, num_bytes: int
) -> None:
    options = {"num_gpu_blocks_override": None, "kv_cache_memory": 1 << 20, "swap_space": 2**-10}
    info = load(TorchAttention, kv_cache_dtype=name, **options).info
    assert (info.dtype, info.kv_cache_dtype) == ("float32", dtype)
    assert (info.kv_bytes_per_block, info.num_blocks) == (num_bytes, (1 << 20) // num_bytes)
    assert info.num_host_blocks == (1 << 20) // num_bytes


NOT_8_BITS = "it keeps keys and values in the model's precision, not in float8_e4m3fn"


@pytest.mark.parametrize(
    ("backend", "name"),
    [(CPUAttention, "cpu"), (BackendPair(TorchAttention, CPUAttention), "torch,cpu")],
    ids=["alone", "in a pair"],
)
def test_a_backend_that_cannot_is_refused_by_name(backend: object, name: str) -> None:
    message = rf"attention backend '{name}' cannot serve this model: .*{NOT_8_BITS} \(--kv-cache"
    with pytest.raises(ConfigError, match=message):
        load(backend, kv_cache_dtype="fp8")


def test_auto_takes_one_that_can_and_says_why_not_another(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert generate(model, kv_cache_dtype="fp8_e4m3") == all_expected("fp8_e4m3")
    (chosen,) = [r for r in caplog.records if r.getMessage() == "attention_backend_chosen"]
    fields: Sequence[str] = vars(chosen)["passed_over"]
    assert vars(chosen)["backend"] == "torch"
    assert f"cpu: {NOT_8_BITS} (--kv-cache-dtype)" in fields
