"""Gemma 3's vision part in a GGUF file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracle.tiny_gemma3 import SIDE, TOKENS_PER_IMAGE, write_model
from tests.oracle.tiny_smolvlm import picture
from tokenmill import LLM, SamplingParams
from tokenmill.core.errors import ConfigError

from .loading import load
from .mmproj_writing import rows_of, write_mmproj_of_gemma3, write_text_model_of_gemma3

LAYERS = ("sliding_attention",) * 5 + ("full_attention",)
"""In GGUF files, every sixth layer sees all tokens."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gemma3"), layer_types=LAYERS)


@pytest.fixture
def model(directory: Path, tmp_path: Path) -> Path:
    """A GGUF file of the text model."""
    path = tmp_path / "tiny-F32.gguf"
    write_text_model_of_gemma3(directory, path)
    return path


def test_it_is_the_tower_of_the_directory(directory: Path, model: Path) -> None:
    write_mmproj_of_gemma3(directory, model.with_name("mmproj-tiny-F32.gguf"))
    ours, theirs = load(model), load(directory)
    assert ours is not None and theirs is not None
    torch.testing.assert_close(
        rows_of(ours.tower, 1, SIDE), rows_of(theirs.tower, 1, SIDE), rtol=0, atol=1e-6
    )
    assert ours.info.largest_span_tokens == TOKENS_PER_IMAGE
    assert ours.info.shown_token_id == theirs.info.shown_token_id
    assert ours.info.placeholder_token_id == 0  # <pad>: the file lacks the directory's token
    assert ours.info.cache_bytes == theirs.info.cache_bytes


def test_chats_get_the_tokens_of_the_directory(directory: Path, model: Path) -> None:
    given = model.with_name("vision.gguf")
    write_mmproj_of_gemma3(directory, given)
    image = picture(1, 150, 100)
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    def answer(path: Path, **options: Any) -> tuple[int, ...]:
        with LLM(str(path), dtype="float32", max_model_len=256, **options) as llm:
            [output] = llm.chat([{"role": "user", "content": parts}], params)
            return output.outputs[0].token_ids

    of_files = answer(model, mmproj=str(given), tokenizer=str(tokenizer_with_padding(directory)))
    assert of_files == answer(directory)


def tokenizer_with_padding(directory: Path) -> Path:
    """The tokenizer of the directory, in which token 0 is called as in the file."""
    folder = directory / "with-padding"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (directory / name).exists():
            text = (directory / name).read_text()
            (folder / name).write_text(text.replace("<unk>", "<pad>"))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip.vision.projector.scale_factor": 3}, "do not fit"),
        ({"clip.vision.patch_size": 0}, "do not fit"),
        ({"clip.use_gelu": False}, "hidden_act"),
    ],
)
def test_one_that_cannot_be_computed_is_refused(
    directory: Path, model: Path, changes: Mapping[str, Any], message: str
) -> None:
    path = model.with_name("vision.gguf")
    write_mmproj_of_gemma3(directory, path, changes)
    with pytest.raises(ConfigError, match=message):
        load(model, mmproj=str(path))
