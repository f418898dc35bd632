"""Ray's actors get images, and compute the tokens of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.oracle.test_images import QUICK, cases, check_chats
from tests.oracle.tiny_smolvlm import write_model


@pytest.mark.parametrize(
    "division", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str
)
def test_chats_on_two_ranks_have_the_tokens_of_transformers(
    tmp_path: Path, spread: Path, division: dict[str, Any]
) -> None:
    folder = write_model(tmp_path / "smolvlm")
    check_chats(folder, cases(folder, 4), QUICK[0], plugins_file=str(spread), **division)
