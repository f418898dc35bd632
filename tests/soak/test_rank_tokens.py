"""Token identity of ranks: the full product of settings on toy models, against transformers.

Each test starts the ranks once, with all that their processes must know. Then one engine after the
other, each with its own setting, drives them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny_checkpoints import make_tokenizer, write_model
from tests.oracle import toy
from tests.oracle.architectures import MODELS
from tests.oracle.comparison import check_what_took_place, find_near_ties
from tests.oracle.reference import ReferenceCase, gap
from tests.oracle.settings import MODES, SCHEDULERS, Setting
from tokenmill import OutputKind, SamplingParams
from tokenmill.assembly import build_parts, build_supervised_engine
from tokenmill.backends.weights.config.kv_groups import MAX_GROUPS
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import EngineClient
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import Executor, ModelInfo, no_progress
from tokenmill.core.plan import StepPlan
from tokenmill.core.shell.new_core import fit_max_model_len, make_core
from tokenmill.testing.engine_driver import STEP_SECONDS, EngineDriver

BLOCK_SIZE = 16
WHOLE, CHUNKS = 256, 24
DRAFT = replace(toy.CONFIG, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=32)
SETTINGS = [
    Setting(
        scheduler=scheduler,
        preemption_mode=mode,
        enable_prefix_caching=caches,
        block_size=BLOCK_SIZE,
        is_starved=is_starved,
        max_num_batched_tokens=budget,
    )
    for scheduler, mode, caches, is_starved, budget in product(
        SCHEDULERS, MODES, (True, False), (True, False), (WHOLE, CHUNKS)
    )
]
"""Scheduler x preemption mode x prefix cache x pool x tokens per step."""


@dataclass(frozen=True, slots=True)
class Toy:
    """A toy model on disk, and what transformers generates."""

    path: Path
    reference: Any
    cases: Sequence[ReferenceCase]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    reference = toy.make_reference()
    path = write_model(tmp_path_factory.mktemp("llama") / "m", toy.CONFIG, 0)
    return Toy(path, reference, toy.make_cases(reference)[1::2])


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """A model with more layers."""
    config = replace(toy.CONFIG, num_layers=4)
    reference = toy.make_reference(random_checkpoint(config, 0))
    path = write_model(tmp_path_factory.mktemp("deep") / "m", config, 0)
    return Toy(path, reference, toy.make_cases(reference)[1::2])


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("draft") / "m", DRAFT, 2)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return write_toy("mixtral", tmp_path_factory.mktemp("experts"))


def write_toy(name: str, path: Path) -> Toy:
    reference = MODELS[name].make()
    reference.save_pretrained(path)
    make_tokenizer(reference.config.vocab_size).save(str(path / "tokenizer.json"))
    return Toy(path, reference, toy.make_cases(reference)[1::2])


@dataclass(frozen=True, slots=True)
class Smaller:
    """An executor of which the engine uses only some KV blocks."""

    executor: Executor
    info: ModelInfo

    def launch(self, plan: StepPlan) -> Any:
        return self.executor.launch(plan)

    def health(self) -> str | None:
        return self.executor.health()

    def close(self) -> None:
        """The executor lives longer than the engine."""


class Filling(EngineDriver):
    """A driver that keeps all stages of the model busy."""

    def step(self) -> StepPlan | None:
        first = super().plan()
        while len(self.open) < self.executor.info.num_stages and self.plan() is not None:
            pass
        self.now += STEP_SECONDS
        if self.open:
            self.commit()
        return first


@contextmanager
def started(model: Toy, **options: Any) -> Iterator[Executor]:
    config = EngineConfig(
        model=str(model.path),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_gpu_blocks_override=MAX_GROUPS * toy.AMPLE_TOKENS // BLOCK_SIZE,
        preemption_mode="swap",
        swap_space=2**-8,
        **options,
    )
    executor = build_parts(config, no_progress).executor
    try:
        yield executor
    finally:
        executor.close()


def compare(model: Toy, executor: Executor, speculation: dict[str, Any], record: Any) -> None:
    """Drive all settings, each with and without drafts."""
    totals = dict.fromkeys(("settings", "preemptions", "swaps", "hits", "drafts", "near_ties"), 0)
    for setting, drafts in product(SETTINGS, ({}, speculation)):
        tokens = toy.STARVED_TOKENS if setting.is_starved else toy.AMPLE_TOKENS
        num_groups = len(executor.info.kv_windows)
        info = replace(executor.info, num_blocks=num_groups * tokens // BLOCK_SIZE)
        config = EngineConfig(device="cpu", swap_space=2**-8, **setting.options() | drafts)
        watcher = toy.Watcher()
        host = PluginHost.load(config, extra=[watcher])
        core = make_core(config, info, host, fit_max_model_len(config, info))
        driver = Filling(core, Smaller(executor, info))
        served = toy.drive(driver, watcher, config, model.cases)
        near = find_near_ties(partial(gap, model.reference), model.cases, served.token_ids)
        # With three stages, prompts may start before the first one is computed. With windows, all
        # requests may fit into the cache.
        if info.num_stages < 3 and num_groups == 1:
            check_what_took_place(setting, served)
        assert (served.num_draft_tokens > 0) is bool(drafts), setting
        totals["settings"] += 1
        totals["preemptions"] += served.num_preemptions
        totals["swaps"] += served.num_swaps
        totals["hits"] += served.num_hit_tokens
        totals["drafts"] += served.num_draft_tokens
        totals["near_ties"] += len(near)
    assert all(total > 0 for name, total in totals.items() if name != "near_ties")
    for name, total in totals.items():
        record(name, total)


NGRAM = {
    "speculative_method": "ngram",
    "num_speculative_tokens": 3,
    "speculative_adaptive": False,
    "speculative_config": {"prompt_lookup_min": 1},
}


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["ngram", "draft-model"])
@pytest.mark.parametrize("attention", ["cpu", "torch"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_give_the_tokens_of_transformers(
    llama: Toy, draft: Path, size: int, attention: str, method: str, record_property: Any
) -> None:
    of_draft = {"speculative_model": str(draft), "num_speculative_tokens": 3}
    drafts = NGRAM if method == "ngram" else of_draft | {"speculative_adaptive": False}
    options = {"tensor_parallel_size": size, "attention_backend": attention}
    with started(llama, **options, **drafts) as executor:
        compare(llama, executor, drafts, record_property)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("whole", [False, True], ids=["columns", "whole-experts"])
@pytest.mark.parametrize("attention", ["cpu", "torch"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_with_experts_give_the_tokens_of_transformers(
    experts: Toy, size: int, attention: str, whole: bool, record_property: Any
) -> None:
    options = {"tensor_parallel_size": size, "attention_backend": attention}
    with started(experts, **options, **NGRAM, enable_expert_parallel=whole) as executor:
        compare(experts, executor, NGRAM, record_property)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["ngram", "draft-model"])
@pytest.mark.parametrize(("stages", "size"), [(2, 1), (3, 1), (2, 2)])
def test_stages_give_the_tokens_of_transformers(
    llama: Toy, deep: Toy, draft: Path, stages: int, size: int, method: str, record_property: Any
) -> None:
    model = llama if stages == 2 else deep
    of_draft = {"speculative_model": str(draft), "num_speculative_tokens": 3}
    drafts = NGRAM if method == "ngram" else of_draft | {"speculative_adaptive": False}
    options = {"pipeline_parallel_size": stages, "tensor_parallel_size": size}
    with started(model, **options, **drafts) as executor:
        compare(model, executor, drafts, record_property)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_stages_with_experts_give_the_tokens_of_transformers(
    experts: Toy, record_property: Any
) -> None:
    with started(experts, pipeline_parallel_size=2, **NGRAM) as executor:
        compare(experts, executor, NGRAM, record_property)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("stages", "size"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("name", ["gemma3", "gpt-oss"])
def test_stages_with_different_windows_give_the_tokens_of_transformers(
    name: str, stages: int, size: int, tmp_path: Path, record_property: Any
) -> None:
    model = write_toy(name, tmp_path)
    options = {"pipeline_parallel_size": stages, "tensor_parallel_size": size}
    with started(model, **options, **NGRAM) as executor:
        compare(model, executor, NGRAM, record_property)


REPLICAS = [
    setting
    for setting in SETTINGS
    if setting.is_starved and setting.max_num_batched_tokens == CHUNKS
]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("drafts", [{}, NGRAM], ids=["plain", "ngram"])
@pytest.mark.parametrize("kind", ["llama", "experts"])
def test_two_replicas_of_two_ranks_give_the_tokens_of_transformers(
    kind: str, drafts: dict[str, Any], llama: Toy, experts: Toy, record_property: Any
) -> None:
    model = llama if kind == "llama" else experts
    for setting in REPLICAS:
        config = EngineConfig(
            model=str(model.path),
            device="cpu",
            swap_space=2**-8,
            num_gpu_blocks_override=toy.STARVED_TOKENS // BLOCK_SIZE,
            data_parallel_size=2,
            tensor_parallel_size=2,
            enable_expert_parallel=kind == "experts",
            disable_log_stats=True,
            **setting.options() | drafts,
        )
        found = asyncio.run(answer(config, model.cases))
        find_near_ties(partial(gap, model.reference), model.cases, found)
    record_property("settings", len(REPLICAS))


async def answer(config: EngineConfig, cases: Sequence[ReferenceCase]) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0, max_tokens=toy.NUM_TOKENS, ignore_eos=True)
    params = params.with_changes(output_kind=OutputKind.FINAL)

    async def ask(engine: EngineClient, case: ReferenceCase) -> tuple[int, ...]:
        stream = engine.generate(list(case.prompt_token_ids), params)
        [output] = [output async for output in stream]
        return output.outputs[0].token_ids

    engine = build_supervised_engine(config, no_progress, stall_timeout=60.0, max_restarts=0)
    async with engine:
        found = await asyncio.gather(*(ask(engine, case) for case in cases))
        await engine.refresh()
        assert all(
            one.board.progress.num_finished > 0 for _, one in engine.running.replicas.serving()
        )
        return found
