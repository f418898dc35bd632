"""An executor that knows nothing of ranks: it computes one process's model, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill import AsyncEngine
from tokenmill.backends.execution.base import ExecutorSpec
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import Executor
from tokenmill.plugin import Registry, hookimpl, kinds


class Here:
    """Computes in this process, and looks at no flag."""

    def reasons_against(self, spec: ExecutorSpec) -> list[str]:
        return []

    def __call__(self, spec: ExecutorSpec) -> Executor:
        return spec.load(spec.progress)


class Plugin:
    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.DISTRIBUTED_EXECUTOR_BACKEND, "here", Here)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size 2"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size 2"),
        ({"cpu_bind": "0"}, "--cpu-bind"),
    ],
)
def test_flags_that_it_ignores_are_refused(
    tmp_path: Path, options: dict[str, Any], flag: str
) -> None:
    model = str(write_model(tmp_path / "m", TARGET, 1))
    options = {"device": "cpu", "distributed_executor_backend": "here", **options}
    engine = AsyncEngine(model, plugins=[Plugin()], **options)
    with pytest.raises(ConfigError, match=f"{flag} needs worker processes"):
        asyncio.run(engine.start())
