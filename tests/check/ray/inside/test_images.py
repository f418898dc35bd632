"""Ray's actors get images, and compute the tokens of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.oracle.test_images import KINDS, QUICK, Model, cases, check_chats


@pytest.mark.parametrize(
    ("kind", "division"),
    [("smolvlm", {"tensor_parallel_size": 2}), ("qwen2_vl", {"pipeline_parallel_size": 2})],
    ids=str,
)
def test_chats_on_two_ranks_have_the_tokens_of_transformers(
    tmp_path: Path, spread: Path, kind: str, division: dict[str, Any]
) -> None:
    model = Model(KINDS[kind].write_model(tmp_path), kind)
    check_chats(model.folder, cases(model, 4), QUICK[0], plugins_file=str(spread), **division)
