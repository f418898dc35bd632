"""Draft models at start: what fits the target, what is refused, and the memory that they take."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backends.chosen import backends_with
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.state.kv_cache import bytes_per_block
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.providers.speculation import (
    Draft,
    ProposalBatch,
    SpeculationLimits,
    SpeculationSupport,
)
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ..tiny_checkpoints import DRAFT, TARGET, write_head, write_model


class Wanting:
    """A speculator that wants draft models."""

    limits = SpeculationLimits(num_speculative_tokens=4)
    needs_hidden_states = False

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self.support: SpeculationSupport | None = None

    def prepare(self, support: SpeculationSupport) -> None:
        self.support = support
        self.models = [support.load_draft_model(path) for path in self._paths]

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        return [Draft()] * len(batch.requests)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "target", TARGET, 1)


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small", DRAFT, 2)


def load(target: Path, *drafts: Path, swaps: bool = False, **options: object) -> ModelExecutor:
    config = EngineConfig.from_options(
        **{"model": str(target), "device": "cpu", "dtype": "float32"} | options
    )
    return ModelExecutor.from_checkpoint(
        open_checkpoint(target),
        config,
        backends_with(TorchAttention),
        no_progress,
        swaps=swaps,
        speculation=Wanting(*drafts),
    )


def test_a_block_of_the_kv_cache_has_room_for_both_models(target: Path, draft: Path) -> None:
    both = sum(bytes_per_block(one, 16, torch.float32) for one in (TARGET, DRAFT))
    executor = load(
        target, draft, swaps=True, kv_cache_memory=both * 10, swap_space=both * 5 / 2**30
    )
    assert executor.info.kv_bytes_per_block == both
    assert executor.info.num_blocks == 10
    assert executor.info.num_host_blocks == 5


def test_a_speculator_gets_the_tokenizer_of_the_target(target: Path) -> None:
    speculator = Wanting()
    config = EngineConfig(model=str(target), device="cpu", dtype="float32")
    ModelExecutor.from_checkpoint(
        open_checkpoint(target),
        config,
        backends_with(TorchAttention),
        no_progress,
        speculation=speculator,
    ).close()
    assert speculator.support is not None
    expected = load_tokenizer(target)
    text = "".join(expected.decode([token_id]) for token_id in range(3, 40))
    assert speculator.support.tokenizer.encode(text) == expected.encode(text) != []


def test_a_speculator_without_a_model_costs_no_memory(target: Path) -> None:
    executor = load(target, num_gpu_blocks_override=4)
    assert executor.info.kv_bytes_per_block == bytes_per_block(TARGET, 16, torch.float32)


def test_blocks_behind_a_window_are_kept_for_a_draft_model_and_not_for_a_head(
    draft: Path, tmp_path: Path
) -> None:
    config = replace(TARGET, architecture="MistralForCausalLM", sliding_window=24)
    target = write_model(tmp_path / "windows", config, 1)
    head = write_head(tmp_path / "head", config, 3)
    windows = [load(target, *drafts).info.kv_windows for drafts in ([], [head], [draft])]
    assert windows == [(24,), (24,), (None,)]


def test_the_log_names_the_draft_model(
    target: Path, draft: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tokenmill"):
        load(target, draft, num_gpu_blocks_override=4)
    loaded = [r for r in caplog.records if r.getMessage() == "model_loaded"]
    assert [vars(r)["draft_model"] for r in loaded] == ["small"]


def test_a_vocabulary_of_another_size_is_refused(target: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", replace(DRAFT, vocab_size=160), 2)
    with pytest.raises(
        ConfigError, match=r"other has a vocabulary of 160 tokens and target .* 192"
    ):
        load(target, other, num_gpu_blocks_override=4)


def test_the_first_token_that_differs_is_named(target: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", DRAFT, 2, swapped=True)
    with pytest.raises(
        ConfigError, match=r"differs from that of target: token 40 stands for b'.', not b'"
    ):
        load(target, other, num_gpu_blocks_override=4)


def test_what_is_no_model_is_refused(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model"):
        load(target, tmp_path / "nothing.gguf", num_gpu_blocks_override=4)


def test_there_is_one_draft_model_only(target: Path, draft: Path) -> None:
    with pytest.raises(ConfigError, match="small is the draft model already"):
        load(target, draft, draft, num_gpu_blocks_override=4)


def test_a_head_takes_no_room_in_the_kv_cache(target: Path, tmp_path: Path) -> None:
    executor = load(target, write_head(tmp_path / "head", TARGET, 2), num_gpu_blocks_override=4)
    assert executor.info.kv_bytes_per_block == bytes_per_block(TARGET, 16, torch.float32)


@pytest.mark.parametrize("other", [{"hidden_size": 64}, {"vocab_size": 160}], ids=str)
def test_a_head_for_another_model_is_refused(
    other: dict[str, int], target: Path, tmp_path: Path
) -> None:
    head = write_head(tmp_path / "head", replace(TARGET, **other), 2)
    with pytest.raises(
        ConfigError, match=r"hidden size .* use a head that was made for this model"
    ):
        load(target, head, num_gpu_blocks_override=4)


def test_a_head_made_for_another_name_is_warned_of(
    target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    head = write_head(tmp_path / "head", TARGET, 2)
    with caplog.at_level(logging.WARNING, logger="tokenmill"):
        load(target, head, num_gpu_blocks_override=4)
    (warning,) = [r for r in caplog.records if "another_model" in r.getMessage()]
    assert (vars(warning)["head"], vars(warning)["model"]) == ("head", "target")


@pytest.mark.parametrize("kind", ["none", "model", "head"])
def test_a_closed_executor_lets_go_of_both_models(
    kind: str, target: Path, draft: Path, tmp_path: Path
) -> None:
    """Also while the speculator lives on, which holds the draft."""
    drafts = {"none": [], "model": [draft], "head": [write_head(tmp_path / "head", TARGET, 2)]}
    config = EngineConfig(model=str(target), device="cpu", num_gpu_blocks_override=4)
    speculator = Wanting(*drafts[kind])
    executor = ModelExecutor.from_checkpoint(
        open_checkpoint(target),
        config,
        backends_with(TorchAttention),
        no_progress,
        speculation=speculator,
    )
    runner = weakref.ref(executor._runner)
    executor.close()
    gc.collect()
    assert runner() is None and speculator.support is not None
