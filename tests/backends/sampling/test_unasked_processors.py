"""A logits processor with `always = True` changes the logits of requests that do not ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmill import LLM, SamplingParams
from tokenmill.compute import ProcessedRow, ProcessorSpec
from tokenmill.core import kinds
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.registry import Registry

from ..tiny_checkpoints import TARGET, write_model

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "num_gpu_blocks_override": 24,
    "disable_log_stats": True,
}


class OnlyToken:
    """Leaves one token: the one that the request names, else token 7."""

    arguments = ("only",)
    example: Mapping[str, Any] = {"only": 3}
    allows_drafts = True
    always = True

    @classmethod
    def reasons_against(cls, spec: ProcessorSpec) -> list[str]:
        return []

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        if type(arguments.get("only", 7)) is not int:
            raise ValueError("only must be a token id")

    def __init__(self, spec: ProcessorSpec) -> None:
        pass

    def begin(self, arguments: Mapping[str, Any]) -> int:
        return int(arguments.get("only", 7))

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        for logits_v, row in zip(logits_gv, rows, strict=True):
            kept = logits_v[row.state].clone()
            logits_v[:] = -torch.inf
            logits_v[row.state] = kept


class Plugin:
    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.LOGITS_PROCESSOR, "only-token", lambda: OnlyToken)


@pytest.mark.usefixtures("own_folder")
def test_all_requests_use_it_and_may_give_its_arguments(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny", TARGET, 0)
    prompts = [[1, 2, 3], [4, 5], [6]]
    params = [
        SamplingParams(max_tokens=3, ignore_eos=True),
        SamplingParams(max_tokens=3, ignore_eos=True, extra_args={"only": 9}),
        SamplingParams(max_tokens=3, ignore_eos=True, temperature=0),
    ]
    with LLM(str(path), plugins=[Plugin()], **OPTIONS) as llm:
        outputs = llm.generate(prompts, params)
    assert [one.outputs[0].token_ids for one in outputs] == [(7,) * 3, (9,) * 3, (7,) * 3]
