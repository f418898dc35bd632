"""The Ray executor computes what one process computes, on one machine and on two."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.execution.workers import linked_targets
from tests.backends.execution.workers.test_pipeline_parallel import check_steps_after_failures
from tests.backends.execution.workers.test_same_tokens import answers_of
from tests.check.ray.machines import HEAD, OTHER
from tokenmill import AsyncEngine
from tokenmill.backends.execution.base import ExecutorProvider
from tokenmill.backends.execution.ray.options import RayOptions
from tokenmill.backends.execution.ray.provider import RayProvider
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError, DeviceError
from tokenmill.core.interfaces import Executor
from tokenmill.testing.conformance.executor.suite import ExecutorConformance
from tokenmill.testing.conformance.executor.worker import decode_plan, make_spec, prompt_plan

if TYPE_CHECKING:  # it imports Ray, which the engine configures first
    from tokenmill.backends.execution.ray.executor import RayExecutor

NGRAM: dict[str, Any] = {"speculative_method": "ngram"}


class TestConformance(ExecutorConformance):
    @pytest.fixture
    def distributed_executor_backend(self) -> ExecutorProvider:
        return RayProvider(RayOptions())


def test_two_ranks_on_one_machine_and_on_two_give_the_tokens_of_one_process(
    model: Path, spread: Path
) -> None:
    wanted = [tokens for tokens, *_ in asyncio.run(answers_of(model, **NGRAM))]
    for plugins in ({"distributed_executor_backend": "ray"}, {"plugins_file": str(spread)}):
        found = asyncio.run(answers_of(model, **NGRAM, tensor_parallel_size=2, **plugins))
        assert [tokens for tokens, *_ in found] == wanted


@pytest.mark.parametrize(
    "options",
    [{}, NGRAM, NGRAM | {"tensor_parallel_size": 2}],
    ids=["plain", "ngram", "two-ranks"],
)
def test_two_stages_on_two_machines_give_the_tokens_of_one_process(
    model: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    alone = options | {"tensor_parallel_size": 1}
    wanted = [tokens for tokens, *_ in asyncio.run(answers_of(model, **alone))]
    options = options | {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
    with caplog.at_level(logging.INFO, "tokenmill"):
        found = asyncio.run(answers_of(model, **options))
    assert [tokens for tokens, *_ in found] == wanted
    [record] = [one for one in caplog.records if one.getMessage() == "ray_workers_placed"]
    addresses = record.__dict__["addresses"]
    size = len(addresses) // 2
    assert {frozenset(addresses[:size]), frozenset(addresses[size:])} == {
        frozenset({HEAD}),
        frozenset({OTHER}),
    }


@pytest.fixture
def stages() -> Iterator[Executor]:
    """Two stages on two machines, which compute the simulated model."""
    config = EngineConfig(pipeline_parallel_size=2)
    load_rank = f"{linked_targets.__name__}:{linked_targets.staged.__name__}"
    spec = replace(make_spec(), load_rank=load_rank, config=config)
    executor = RayProvider(RayOptions())(spec)
    yield executor
    executor.close()


def test_a_step_that_raises_in_one_stage_leaves_all_stages_in_step(stages: Executor) -> None:
    check_steps_after_failures(stages)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_stage_ends_the_steps_of_all_stages(stages: RayExecutor, rank: int) -> None:
    assert stages.launch(prompt_plan("a", (1, 2), 1)).result().step_id == 1
    os.kill(stages.nodes[rank].pid, signal.SIGKILL)
    plans = [decode_plan("a", 2, 2), prompt_plan("b", (1, 2), 3, block=8)]
    for pending in [stages.launch(plan) for plan in plans]:
        with pytest.raises(DeviceError, match=f"worker {rank} (on .* ended|hangs)"):
            pending.result()
    health = stages.health()
    assert health is not None and health.startswith(f"worker {rank} on")


def test_a_cluster_without_room_is_an_error_that_says_what_is_free(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plugins.toml"
    path.write_text(
        'api = 1\n[distributed_executor_backend]\nuse = "ray"\ncpus_per_worker = 3\n'
        "placement_timeout = 9\n"
    )
    engine = AsyncEngine(str(model), device="cpu", plugins_file=str(path))
    lack = (
        "no room for 1 workers with 3 CPU each, placed by STRICT_PACK, and no single node has "
        f"3 CPU free. Free: .*{OTHER} has 2 CPU, 0 GPU and .* GiB"
    )
    with pytest.raises(ConfigError, match=lack), caplog.at_level(logging.WARNING, "tokenmill"):
        asyncio.run(engine.start())
    found = [one for one in caplog.records if one.getMessage() == "ray_waits_for_room"]
    assert len(found) == 2 and re.search(lack, found[0].__dict__["reason"])
