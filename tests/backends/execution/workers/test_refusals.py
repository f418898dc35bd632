"""Divisions of a model that cannot work are refused before its weights are read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill import AsyncEngine
from tokenmill.core.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 7}, "the model has only 4 query heads"),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "inprocess"},
            "no executor supports this configuration: inprocess: --tensor-parallel-size 2 needs",
        ),
        ({"enable_expert_parallel": True}, "has no experts; remove it"),
        ({"pipeline_parallel_size": 4}, "--pipeline-parallel-size 4: the model has only 3 layers"),
        (
            {"pipeline_parallel_size": 2, "model_impl": "transformers"},
            r"'transformers' .* cannot divide it",
        ),
        (
            {"pipeline_parallel_size": 2, "distributed_executor_backend": "inprocess"},
            "inprocess: --pipeline-parallel-size 2 needs worker processes",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_weights_are_read(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    model = write_model(tmp_path / "m", TARGET, 1)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(AsyncEngine(str(model), device="cpu", **options).start())
