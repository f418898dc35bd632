"""Downloads through huggingface_hub, from a server of ours: only what tokenmill opens, if asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.hub.location import locate_model
from tokenmill.core.errors import ConfigError

from ...models.native.test_loader import CONFIG
from ...tiny_checkpoints import write_model
from ..gguf_writing import write_gguf
from .fake_hub import COMMIT, FakeHub, fake_hub

NAMES = ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_ENDPOINT")
LOCATE = """
from pathlib import Path
from tokenmill.backends.weights.hub.location import locate_model
print(locate_model("org/name", allow_download=True, progress=lambda stage, done: None))
"""


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Lets huggingface_hub use a network, and gives it an empty cache."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path / "hub"


class Located:
    """A model that was looked for: its path, and the progress of the download."""

    def __init__(
        self, hub: FakeHub, name: str, *, allow: bool = True, revision: str | None = None
    ) -> None:
        self.progress: list[float] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_ENDPOINT", hub.url)
            self.path = locate_model(
                name, allow_download=allow, progress=self._note, revision=revision
            )

    def _note(self, stage: str, done: float) -> None:
        assert stage == "downloading the model"
        self.progress.append(done)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """A repository with safetensors, and with files that must not be downloaded."""
    folder = write_model(
        tmp_path_factory.mktemp("repository") / "m", replace(CONFIG, vocab_size=200), 0
    )
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    unwanted = ("pytorch_model.bin", "training_args.pt", "modeling_evil.py", "README.md",
                "consolidated.safetensors", "onnx/model.onnx")  # fmt: skip
    return files | {name: b"unwanted" for name in unwanted}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """A repository with a split GGUF model, and another quantization."""
    folder = tmp_path_factory.mktemp("repository")
    write_gguf(folder / "m-F32.gguf", random_checkpoint(CONFIG, 0), tensors_per_part=12)
    files = {f"F32/{path.name}": path.read_bytes() for path in folder.iterdir()}
    return files | {"m-Q4_0.gguf": b"unwanted", "imatrix.dat": b"unwanted"}


def test_only_files_that_are_opened_are_downloaded_and_only_once(
    directory: Mapping[str, bytes], online: Path
) -> None:
    with fake_hub("org/name", directory) as hub:
        found = Located(hub, "org/name")
        assert found.path == online / "models--org--name" / "snapshots" / COMMIT
        assert sorted(hub.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
        assert open_checkpoint(found.path).name == "name"
        assert found.progress == sorted(found.progress) and found.progress[-1] == 1.0
        assert len(found.progress) > 3  # within files, too
        hub.asked.clear()
        for allow in (True, False):
            assert Located(hub, "org/name", allow=allow).path == found.path
        assert hub.asked == []


def test_a_model_that_is_there_needs_no_hub(
    directory: Mapping[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with fake_hub("org/name", directory) as hub:
        path = Located(hub, "org/name").path
    caplog.set_level("INFO")
    caplog.clear()
    assert Located(hub, "org/name").path == path
    (event,) = [vars(one) for one in caplog.records if one.msg == "hub_model"]
    assert (event["revision"], event["commit"], event["source"]) == ("main", COMMIT, "cache")


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json", "config.json"])
def test_what_an_interrupted_download_lacks_is_downloaded(
    missing: str, directory: Mapping[str, bytes]
) -> None:
    with fake_hub("org/name", directory) as hub:
        path = Located(hub, "org/name").path
        (path / missing).unlink()
        hub.fetched.clear()
        Located(hub, "org/name")
        assert (path / missing).exists()


def test_the_cache_names_the_commit_of_a_branch_when_all_files_are_there(
    directory: Mapping[str, bytes], online: Path
) -> None:
    """A start without network must not find half of a model."""
    index = json.dumps({"weight_map": {"a": "gone.safetensors"}}).encode()
    with fake_hub("org/name", {**directory, "model.safetensors.index.json": index}) as hub:
        with pytest.raises(ConfigError, match="cannot be downloaded"):
            Located(hub, "org/name")
        assert hub.fetched
    assert not (online / "models--org--name" / "refs" / "main").exists()


def test_a_revision_can_be_pinned(directory: Mapping[str, bytes]) -> None:
    with fake_hub("org/name", directory) as hub:
        path = Located(hub, "org/name", revision=COMMIT).path
        assert path.name == COMMIT
    assert Located(hub, "org/name", revision=COMMIT).path == path
    assert Located(hub, f"org/name@{COMMIT}").path == path


@pytest.mark.parametrize("name", ["quantize_config.json", "hf_quant_config.json"])
def test_the_file_that_says_how_weights_are_quantized_is_downloaded(
    name: str, directory: Mapping[str, bytes]
) -> None:
    with fake_hub("org/name", {**directory, name: b"{}"}) as hub:
        Located(hub, "org/name")
        assert name in hub.fetched


def test_tokenizer_model_is_downloaded_where_tokenizer_json_is_missing(
    directory: Mapping[str, bytes],
) -> None:
    files = {**directory, "tokenizer.model": b"pieces"}
    with fake_hub("org/name", files) as hub:
        Located(hub, "org/name")
        assert "tokenizer.model" not in hub.fetched
    del files["tokenizer.json"]
    with fake_hub("org/other", files) as hub:
        Located(hub, "org/other")
        assert "tokenizer.model" in hub.fetched


def test_the_environment_of_a_new_process_is_respected(
    directory: Mapping[str, bytes], online: Path
) -> None:
    """huggingface_hub reads its settings when it is imported."""
    with fake_hub("org/name", directory) as hub:
        done = subprocess.run(
            [sys.executable, "-c", LOCATE],
            env={**os.environ, "HF_ENDPOINT": hub.url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert Path(done.stdout.strip()) == online / "models--org--name" / "snapshots" / COMMIT


def test_the_shards_of_an_index_are_downloaded(directory: Mapping[str, bytes]) -> None:
    shard = "model-00001-of-00001.safetensors"
    index = json.dumps({"weight_map": {"model.norm.weight": shard}}).encode()
    files = {**directory, shard: directory["model.safetensors"],
             "model.safetensors.index.json": index}  # fmt: skip
    del files["model.safetensors"]
    with fake_hub("org/name", files) as hub:
        Located(hub, "org/name")
        assert {name for name in hub.fetched if "safetensors" in name} == {
            shard,
            "model.safetensors.index.json",
        }


def test_an_index_that_lists_a_pickle_is_refused(directory: Mapping[str, bytes]) -> None:
    index = json.dumps({"weight_map": {"a": "pytorch_model.bin"}}).encode()
    with fake_hub("org/name", {**directory, "model.safetensors.index.json": index}) as hub:
        with pytest.raises(ConfigError, match=r"'pytorch_model.bin', not a safetensors file"):
            Located(hub, "org/name")
        assert "pytorch_model.bin" not in hub.fetched


@pytest.mark.parametrize("name", ["org/name:F32", "org/name/F32/m-F32-00002-of-00002.gguf"])
def test_all_parts_of_the_named_gguf_model_are_downloaded(
    name: str, parts: Mapping[str, bytes]
) -> None:
    with fake_hub("org/name", parts) as hub:
        checkpoint = open_checkpoint(Located(hub, name).path)
        assert len(checkpoint.tensor_names()) == len(random_checkpoint(CONFIG, 0).tensor_names())
        assert sorted(hub.fetched) == [f"F32/m-F32-0000{i}-of-00002.gguf" for i in (1, 2)]


def test_without_a_quantization_the_gguf_models_are_listed(parts: Mapping[str, bytes]) -> None:
    with fake_hub("org/name", parts) as hub:
        with pytest.raises(ConfigError, match=r"GGUF models F32/m-F32-00001-.*, m-Q4_0.gguf: name"):
            Located(hub, "org/name")
        assert not hub.fetched


def test_nothing_is_asked_of_the_hub_without_the_flag(directory: Mapping[str, bytes]) -> None:
    with fake_hub("org/name", directory) as hub:
        with pytest.raises(
            ConfigError, match="add --allow-download, or run `hf download org/name`"
        ):
            Located(hub, "org/name", allow=False)
        assert hub.asked == []


def test_a_repository_that_does_not_exist_is_one_line() -> None:
    with fake_hub("org/name", {}) as hub, pytest.raises(ConfigError) as caught:
        Located(hub, "org/other")
    assert str(caught.value).startswith("org/other at revision main cannot be downloaded: ")
    assert str(caught.value).isprintable()


def test_a_hub_that_cannot_be_reached_is_one_line() -> None:
    with fake_hub("org/name", {}) as hub:
        pass
    with pytest.raises(ConfigError, match="org/name at revision main cannot be downloaded: ") as it:
        Located(hub, "org/name")
    assert str(it.value).isprintable()
