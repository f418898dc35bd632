"""open_checkpoint: what a path may be, and what is said about one that may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.errors import ConfigError


def test_a_missing_path_says_what_was_looked_for_and_what_is_supported() -> None:
    with pytest.raises(ConfigError, match=r"no model at Qwen/Qwen3-0.6B.*\.gguf file.*hf download"):
        open_checkpoint(Path("Qwen/Qwen3-0.6B"))


def test_a_directory_without_a_model_says_what_a_model_has(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    found = (
        r"no config\.json and no \.gguf file\. Supported: .* \(config\.json and \*\.safetensors\)"
    )
    with pytest.raises(ConfigError, match=f"no model in {tmp_path}: it has {found}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth"])
def test_pickles_are_never_opened(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"pytorch_model.{suffix}"
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match=r"is a pickle, which can run any program"):
        open_checkpoint(path)


def test_a_gguf_file_with_another_ending_is_not_called_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(ConfigError, match=r"model\.bin is a GGUF file: .* ends in \.gguf"):
        open_checkpoint(path)


def test_a_lone_safetensors_file_points_to_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ConfigError, match=r"name its directory, which has config\.json"):
        open_checkpoint(path)


def test_any_other_file_says_what_is_supported(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.touch()
    with pytest.raises(
        ConfigError, match=r"not a model in a known format\. Supported: a Hugging Face directory"
    ):
        open_checkpoint(path)
