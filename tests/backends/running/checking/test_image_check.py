"""The check at the start compares a prompt that has an image with transformers' first layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.tiny_qwen2_vl import write_model
from tokenmill import LLM
from tokenmill.backends.running.checking import image_check
from tokenmill.core.errors import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen2_vl"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wrong_positions_are_refused(
    folder: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same model starts if its positions are those of transformers."""
    options = {"dtype": dtype, "max_model_len": 64, "num_gpu_blocks_override": 16}
    LLM(str(folder), **options).close()
    right = image_check.rotary_positions

    def wrong(*given: object) -> object:
        return right(*given)[[0, 2, 1]].copy()  # type: ignore[arg-type]

    monkeypatch.setattr(image_check, "rotary_positions", wrong)
    with pytest.raises(ConfigError, match="does not have transformers' hidden states"):
        LLM(str(folder), **options)
    LLM(str(folder), skip_model_check=True, **options).close()
    LLM(str(folder), language_model_only=True, **options).close()
