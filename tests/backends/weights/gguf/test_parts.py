"""Split GGUF models: any part opens all, and wrong parts are named."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.gguf.parts import read_gguf_model
from tokenmill.core.errors import ConfigError

from ...models.native.test_loader import CONFIG
from ..gguf_writing import write_gguf

SOURCE = random_checkpoint(CONFIG, 0)
PARTS = [f"Tiny-00{i:03}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("split")
    values = {"general.name": "Tiny", "tokenizer.ggml.model": "llama"}
    write_gguf(folder / "Tiny.gguf", SOURCE, tensors_per_part=8, values=values)
    assert sorted(path.name for path in folder.iterdir()) == PARTS
    yield folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", [*PARTS, "."])
def test_any_part_and_the_directory_open_the_whole_model(name: str, folder: Path) -> None:
    checkpoint = open_checkpoint(folder / name)
    assert checkpoint.path == folder / PARTS[0]
    assert checkpoint.name == "Tiny"
    assert sorted(checkpoint.tensor_names()) == sorted(SOURCE.tensor_names())
    for tensor in SOURCE.tensor_names():
        assert torch.equal(checkpoint.tensor(tensor), SOURCE.tensor(tensor)), tensor


@pytest.mark.parametrize("name", [*PARTS, "."])
def test_the_tokenizer_is_read_from_the_first_part(name: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{PARTS[0]}.* has no tokenizer.ggml.scores"):
        load_tokenizer(folder / name)


def test_a_missing_part_is_named_whichever_part_is_opened(folder: Path) -> None:
    (folder / PARTS[1]).unlink()
    for name in (PARTS[0], PARTS[2], "."):
        with pytest.raises(ConfigError, match=rf"{PARTS[1]} is missing: it is part 2 of 3"):
            open_checkpoint(folder / name)


def test_a_directory_without_the_first_part_names_it(folder: Path) -> None:
    (folder / PARTS[0]).unlink()
    with pytest.raises(ConfigError, match=rf"{PARTS[0]} is missing: it is part 1 of 3"):
        open_checkpoint(folder)


def test_a_damaged_part_is_named(folder: Path) -> None:
    content = (folder / PARTS[2]).read_bytes()
    (folder / PARTS[2]).write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=rf"{PARTS[2]} cannot be read as a GGUF file: it is cut"):
        open_checkpoint(folder / PARTS[0])


def test_a_part_in_the_place_of_another_is_named(folder: Path) -> None:
    shutil.copy(folder / PARTS[2], folder / PARTS[1])
    with pytest.raises(ConfigError, match=rf"{PARTS[1]} is not part 2 of 3: its split.no is 2"):
        open_checkpoint(folder / PARTS[0])


def test_a_part_of_a_model_with_another_number_of_parts_is_named(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    write_gguf(other / "Tiny.gguf", SOURCE, tensors_per_part=4)
    shutil.copy(next(other.glob("*-00002-of-*")), folder / PARTS[1])
    with pytest.raises(ConfigError, match=rf"{PARTS[1]} is not part 2 of 3: its split.count is 5"):
        open_checkpoint(folder / PARTS[0])


def test_a_part_of_another_model_is_named(folder: Path) -> None:
    other = folder.parent / "other"
    other.mkdir()
    write_gguf(
        other / "Tiny.gguf", SOURCE, tensors_per_part=9, tensors={"output.weight": torch.ones(4)}
    )
    shutil.copy(other / PARTS[1], folder / PARTS[1])
    with pytest.raises(ConfigError, match=rf"{PARTS[1]} is a part of another model: its split.t"):
        open_checkpoint(folder / PARTS[0])


def test_a_tensor_in_two_parts_is_named(folder: Path) -> None:
    content = bytearray((folder / PARTS[1]).read_bytes())
    name, known = b"blk.1.attn_k.weight", b"blk.0.attn_k.weight"
    assert content.count(name) == 1 and known in (folder / PARTS[0]).read_bytes()
    (folder / PARTS[1]).write_bytes(content.replace(name, known))
    with pytest.raises(ConfigError, match=rf"{PARTS[1]} is a part of another model.*attn_k"):
        open_checkpoint(folder / PARTS[0])


def test_a_number_of_tensors_that_no_part_has_is_refused(tmp_path: Path) -> None:
    values = {"split.count": 1, "split.tensors.count": 99}
    write_gguf(tmp_path / "one.gguf", SOURCE, values=values)
    assert len(read_gguf_model(tmp_path / "one.gguf").tensors) == len(SOURCE.tensor_names())
    write_gguf(tmp_path / "a.gguf", SOURCE, tensors_per_part=8)
    for path in tmp_path.glob("a-*"):
        content = path.read_bytes()
        key = b"split.tensors.count" + (5).to_bytes(4, "little")
        at = content.index(key) + len(key)
        path.write_bytes(content[:at] + (99).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(ConfigError, match=r"parts of .*a-00001.* have 20 tensors, not 99"):
        open_checkpoint(next(tmp_path.glob("a-*")))


def test_a_part_with_another_name_says_how_parts_are_named(folder: Path) -> None:
    (folder / PARTS[0]).rename(folder / "first.gguf")
    with pytest.raises(ConfigError, match=r"first.gguf is one of 3 parts.*-00001-of-00003.gguf"):
        open_checkpoint(folder / "first.gguf")


def test_a_directory_with_several_models_names_them(folder: Path) -> None:
    (folder / "other.gguf").touch()
    with pytest.raises(
        ConfigError, match=rf"has 2 GGUF models: name one of {PARTS[0]}, other.gguf"
    ):
        open_checkpoint(folder)


def test_a_vision_projector_beside_the_model_is_left_alone(folder: Path) -> None:
    (folder / "mmproj-Tiny-f16.gguf").touch()
    assert open_checkpoint(folder).name == "Tiny"
