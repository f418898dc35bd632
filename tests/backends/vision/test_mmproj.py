"""The vision part of a GGUF model, in a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracle.tiny_smolvlm import TILE, picture, write_model
from tokenmill import LLM, SamplingParams
from tokenmill.core.errors import ConfigError

from .loading import load
from .mmproj_writing import rows_of, write_mmproj, write_text_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture
def model(directory: Path, tmp_path: Path) -> Path:
    """A GGUF file of the text model."""
    path = tmp_path / "tiny-F32.gguf"
    write_text_model(directory, path)
    return path


def test_it_is_the_tower_of_the_directory(directory: Path, model: Path) -> None:
    write_mmproj(directory, model.with_name("mmproj-tiny-F32.gguf"))
    ours, theirs = load(model), load(directory)
    assert ours is not None and theirs is not None
    assert torch.equal(rows_of(ours.tower, 1, TILE), rows_of(theirs.tower, 1, TILE))
    assert ours.info.placeholder_token_id == theirs.info.placeholder_token_id
    assert ours.info.cache_bytes == theirs.info.cache_bytes


def test_chats_get_the_tokens_of_the_directory(directory: Path, model: Path) -> None:
    given = model.with_name("vision.gguf")
    write_mmproj(directory, given)
    image = picture(1, 150, 100)
    parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is it?"}]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    def answer(path: Path, **options: Any) -> tuple[int, ...]:
        with LLM(str(path), dtype="float32", **options) as llm:
            [output] = llm.chat([{"role": "user", "content": parts}], params)
            return output.outputs[0].token_ids

    of_files = answer(model, mmproj=str(given), tokenizer=str(directory))
    assert of_files == answer(directory)


def test_without_one_the_model_reads_text(model: Path) -> None:
    assert load(model) is None


def test_of_several_none_is_used_unless_it_is_given(directory: Path, model: Path) -> None:
    for name in ("mmproj-a.gguf", "mmproj-b.gguf"):
        write_mmproj(directory, model.with_name(name))
    assert load(model) is None
    assert load(model, mmproj=str(model.with_name("mmproj-b.gguf"))) is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip.projector_type": "ldp"}, "projector of type 'ldp'"),
        ({"clip.vision.attention.head_count": 5}, "heads divide hidden_size"),
        ({"clip.vision.patch_size": 32}, "has shape"),
        ({"clip.vision.image_mean": [0.5]}, "must have 3 numbers"),
        ({"clip.use_gelu": False}, "hidden_act"),
    ],
)
def test_one_that_cannot_be_computed_is_refused(
    directory: Path, model: Path, changes: Mapping[str, Any], message: str
) -> None:
    path = model.with_name("vision.gguf")
    write_mmproj(directory, path, changes)
    with pytest.raises(ConfigError, match=message):
        load(model, mmproj=str(path))


def test_a_missing_file_and_a_directory_s_model_are_refused(directory: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(model, mmproj="nowhere.gguf")
    with pytest.raises(ConfigError, match="--mmproj is for GGUF models"):
        load(directory, mmproj="nowhere.gguf")
