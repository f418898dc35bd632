"""The Ray executor computes what one process computes, on one machine and on two."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.backends.execution.workers.test_same_tokens import answers_of
from tokenmill import AsyncEngine
from tokenmill.backends.execution.base import ExecutorProvider
from tokenmill.backends.execution.ray.options import RayOptions
from tokenmill.backends.execution.ray.provider import RayProvider
from tokenmill.core.errors import ConfigError
from tokenmill.testing.conformance.executor.suite import ExecutorConformance


class TestConformance(ExecutorConformance):
    @pytest.fixture
    def distributed_executor_backend(self) -> ExecutorProvider:
        return RayProvider(RayOptions())

    test_every_stage_computes_a_plan_of_other_requests = None  # the executor refuses stages


def test_two_ranks_on_one_machine_and_on_two_give_the_tokens_of_one_process(
    model: Path, spread: Path
) -> None:
    options = {"speculative_method": "ngram"}
    wanted = [tokens for tokens, *_ in asyncio.run(answers_of(model, **options))]
    for plugins in ({"distributed_executor_backend": "ray"}, {"plugins_file": str(spread)}):
        found = asyncio.run(answers_of(model, **options, tensor_parallel_size=2, **plugins))
        assert [tokens for tokens, *_ in found] == wanted


def test_a_cluster_without_room_is_an_error_that_says_what_is_free(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plugins.toml"
    path.write_text(
        'api = 1\n[distributed_executor_backend]\nuse = "ray"\ncpus_per_worker = 3\n'
        "placement_timeout = 1\n"
    )
    engine = AsyncEngine(str(model), device="cpu", plugins_file=str(path))
    with pytest.raises(ConfigError, match=r"no room for 1 workers with 3 CPU each, .* 4 CPU free"):
        asyncio.run(engine.start())
