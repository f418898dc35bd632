"""A file in float16 keeps its weights, and gives the log-probabilities of float32: alone, with
drafts, and divided among processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends.tiny import make_prompt
from tests.backends.tiny_checkpoints import DRAFT, TARGET, in_type, write_head, write_model
from tokenmill import AsyncEngine, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, prompt_logprobs=0)


async def answer_of(model: Path, **options: Any) -> tuple[list[int], list[float]]:
    options |= {"device": "cpu", "num_gpu_blocks_override": 64, "disable_log_stats": True}
    async with AsyncEngine(str(model), **options) as engine:
        [*_, last] = [output async for output in engine.generate(make_prompt(40, 1), PARAMS)]
    known = [one.logprob for one in last.prompt_logprobs or () if one is not None]
    return list(last.outputs[0].token_ids), known


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="alone"),
        pytest.param({"speculative_model": "draft", "num_speculative_tokens": 3}, id="draft model"),
        pytest.param({"speculative_model": "head", "num_speculative_tokens": 2}, id="draft head"),
        pytest.param({"tensor_parallel_size": 2}, id="ranks", marks=pytest.mark.check),
        pytest.param({"pipeline_parallel_size": 2}, id="stages", marks=pytest.mark.check),
    ],
)
def test_log_probabilities_of_a_float16_file_are_those_of_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = in_type(write_model(tmp_path / "m", TARGET, 1), torch.float16)
    in_type(write_model(tmp_path / "draft", DRAFT, 2), torch.float16)
    write_head(tmp_path / "head", TARGET, 3)
    tokens, logprobs = asyncio.run(answer_of(model, dtype="float32"))
    for dtype in ("auto", "float16"):
        found_tokens, found = asyncio.run(answer_of(model, dtype=dtype, **options))
        assert len(found) == 39 and found == pytest.approx(logprobs, abs=1e-4)
        assert found_tokens == tokens
