"""A model that was quantized once is read from the cache, and anything that differs is not."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CPU
from tests.backends.tiny_checkpoints import TARGET, write_model
from tests.backends.weights.gguf_writing import write_gguf
from tests.oracle.architectures import write
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights import quantized_on_load
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.formats.quantizing import QUANTIZE_ON_LOAD, quantize
from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.backends.weights.quantized_cache import matrices as cached_matrices
from tokenmill.backends.weights.quantized_cache.folder import list_models
from tokenmill.backends.weights.quantized_on_load import QuantizedOnLoad
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.llm import LLM

CONFIG = replace(
    TARGET,
    num_layers=2,
    hidden_size=256,
    intermediate_size=320,
    vocab_size=200,
    tie_word_embeddings=True,
)
UP = "model.layers.0.mlp.up_proj.weight"
Blocks = Mapping[str, torch.Tensor]


class Quantizer:
    """The real one, which counts its calls."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, *args: Any) -> PackedWeights:
        self.num_calls += 1
        return quantize(*args)


@pytest.fixture
def cache(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    return own_folder / "cache" / "tokenmill" / "models"


@pytest.fixture
def quantizer(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Quantizer:
    counting = Quantizer()
    monkeypatch.setattr(quantized_on_load, "quantize", counting)
    return counting


@pytest.fixture
def model(own_folder: Path) -> Path:
    path = own_folder / "tiny.gguf"
    values = {"general.name": "first name"}
    write_gguf(path, random_checkpoint(CONFIG, 0), values=values)
    return path


def matrix_names(checkpoint: QuantizedOnLoad) -> list[str]:
    names = checkpoint.tensor_names()
    return [n for n in names if not isinstance(checkpoint.stored(n).format, torch.dtype)]


def load(path: Path, kind: str = "q8_0", limit: int | None = None) -> Blocks:
    """Read all matrices of a model whose embedding is its head."""
    checkpoint = QuantizedOnLoad(open_checkpoint(path), kind, limit)
    read = {name: checkpoint.matrix(name) for name in matrix_names(checkpoint)}
    checkpoint.release()
    blocks = {n: one.planes[0] for n, one in read.items() if isinstance(one, PackedWeights)}
    assert len(blocks) == len(read) == 7 * CONFIG.num_layers + 1
    return blocks


def are_equal(first: Blocks, second: Blocks) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [vars(one) for one in caplog.records if one.msg == name]


@pytest.mark.parametrize("kind", QUANTIZE_ON_LOAD)
def test_the_second_start_reads_what_the_first_one_quantized(
    model: Path, quantizer: Quantizer, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tokenmill")
    made = load(model, kind)
    assert quantizer.num_calls == len(made)
    read = load(model, kind)
    assert quantizer.num_calls == len(made)
    assert are_equal(made, read)
    (kept,) = events(caplog, "quantized_weights_cached")
    (found,) = events(caplog, "quantized_weights_read_from_cache")
    assert kept["seconds"] == found["seconds_saved"]
    assert kept["path"] == found["path"]
    (listed,) = list_models()
    assert (listed.name, listed.model, listed.kind) == (Path(found["path"]).stem, str(model), kind)


def test_an_engine_gives_the_same_tokens_from_the_cache(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by XDG_CACHE_HOME, because the kernels would be compiled again.
    monkeypatch.setattr(cached_matrices, "models_folder", lambda: own_folder / "models")
    quantizer = Quantizer()
    monkeypatch.setattr(quantized_on_load, "quantize", quantizer)
    path = write_model(own_folder / "model", replace(CONFIG, tie_word_embeddings=False), 3)
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    answers = []
    for _ in range(2):
        with LLM(str(path), quantize_on_load="q8_0", device="cpu", kv_cache_memory=1 << 22) as llm:
            output = llm.generate([[3, 1, 4, 1, 5]], params, use_tqdm=False)
        answers.append(output[0].outputs[0].token_ids)
        assert quantizer.num_calls == 7 * CONFIG.num_layers + 1
    assert answers[0] == answers[1]
    assert len(answers[0]) == 24


@pytest.mark.parametrize("name", ["phi4-mini", "mixtral", "gpt-oss"])
def test_every_matrix_that_a_loader_reads_is_in_the_cache(
    name: str, tmp_path: Path, quantizer: Quantizer
) -> None:
    for path in write(name, tmp_path)[1]:
        calls = []
        for _ in range(2):
            before = quantizer.num_calls
            checkpoint = QuantizedOnLoad(open_checkpoint(path), "q8_0", 1 << 30)
            load_decoder(checkpoint, dtype=torch.float32, device=CPU, progress=no_progress)
            calls.append(quantizer.num_calls - before)
        assert calls[0] > 0
        assert calls[1] == 0


def test_a_head_in_the_file_is_quantized_and_not_the_embedding(
    own_folder: Path, quantizer: Quantizer
) -> None:
    path = write_model(own_folder / "model", replace(CONFIG, tie_word_embeddings=False), 0)
    for _ in range(2):
        checkpoint = QuantizedOnLoad(open_checkpoint(path), "q8_0", 1 << 30)
        load_decoder(checkpoint, dtype=torch.float32, device=CPU, progress=no_progress)
    assert quantizer.num_calls == 7 * CONFIG.num_layers + 1


def test_a_split_model_is_cached(own_folder: Path, quantizer: Quantizer) -> None:
    write_gguf(own_folder / "s.gguf", random_checkpoint(CONFIG, 0), tensors_per_part=8)
    parts = sorted(own_folder.glob("s-*.gguf"))
    made = load(parts[0])
    assert are_equal(made, load(parts[0]))
    assert quantizer.num_calls == len(made)
    touch(parts[-1])
    load(parts[0])
    assert quantizer.num_calls == 2 * len(made)


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    """Change a file; its time of modification stays."""
    status = path.stat()
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def append(path: Path) -> None:
    status = path.stat()
    with path.open("ab") as file:
        file.write(bytes(32))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", ["path", "size", "time", "header", "kind", "version"])
def test_a_model_that_differs_in_any_way_is_quantized_again(
    change: str, model: Path, quantizer: Quantizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, kind = load(model), "q8_0"
    if change == "path":
        (model.parent / "copy").mkdir()
        model = Path(shutil.copy2(model, model.parent / "copy"))
    elif change == "size":
        append(model)
    elif change == "time":
        touch(model)
    elif change == "header":
        replace_bytes(model, b"first name", b"other name")
    elif change == "kind":
        kind = "q4_0"
    else:
        monkeypatch.setattr(cached_matrices, "QUANTIZER_VERSION", 0)
    again = load(model, kind)
    assert quantizer.num_calls == 2 * len(made)
    assert are_equal(made, again) == (change != "kind")
    assert len(list_models()) == 2


@pytest.mark.parametrize("damage", ["cut short", "too long", "header", "empty", "of another model"])
def test_a_damaged_file_is_removed_and_made_again(
    damage: str, model: Path, quantizer: Quantizer, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = load(model)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut short": content[:-8],
            "too long": content + bytes(8),
            "header": content.replace(b'"U8"', b'"I8"', 1),
            "empty": b"",
            "of another model": content.replace(b"tiny.gguf", b"tony.gguf"),
        }[damage]
    )
    assert are_equal(made, load(model))
    assert quantizer.num_calls == 2 * len(made)
    assert len(events(caplog, "cached_model_is_damaged")) == 1
    assert list(cache.iterdir()) == [path]
    assert path.read_bytes()[:-8] == content[:-8]


def test_loads_at_the_same_time_do_not_disturb_each_other(
    model: Path, quantizer: Quantizer, cache: Path
) -> None:
    first, second = (QuantizedOnLoad(open_checkpoint(model), "q8_0", 1 << 30) for _ in range(2))
    names = matrix_names(first)
    for name in names[:-1]:
        first.matrix(name)
    assert {path.suffix for path in cache.iterdir()} == {".making"}
    for name in names:
        second.matrix(name)
    assert sorted(path.suffix for path in cache.iterdir()) == [".making", ".safetensors"]
    read = load(model)
    first.matrix(names[-1])
    assert quantizer.num_calls == 2 * len(names)
    assert are_equal(read, load(model))
    assert [path.suffix for path in cache.iterdir()] == [".safetensors"]


def test_matrices_stay_valid_when_their_file_is_removed(
    model: Path, quantizer: Quantizer, cache: Path
) -> None:
    made = load(model)
    checkpoint = QuantizedOnLoad(open_checkpoint(model), "q8_0", 1 << 30)
    first = checkpoint.matrix(UP)
    (path,) = cache.iterdir()
    path.unlink()
    checkpoint.release()
    blocks = {n: checkpoint.matrix(n).planes[0] for n in made}  # type: ignore[union-attr]
    assert are_equal(made, blocks)
    assert isinstance(first, PackedWeights)
    assert torch.equal(first.planes[0], made[UP])
    assert quantizer.num_calls == len(made)


def test_without_room_nothing_is_kept(
    model: Path, quantizer: Quantizer, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = load(model, limit=1000)
    assert are_equal(made, load(model, limit=1000))
    assert quantizer.num_calls == 2 * len(made)
    assert list(cache.iterdir()) == []
    for event in events(caplog, "quantized_weights_not_cached"):
        assert event["reason"].endswith("do not fit into 1000")
        assert event["option"] == "--model-cache-size"


def test_the_model_that_was_not_used_for_longest_is_removed_for_a_new_one(
    model: Path, quantizer: Quantizer, cache: Path
) -> None:
    models = [Path(shutil.copy(model, model.parent / f"{name}.gguf")) for name in "abc"]
    for age, path in zip((300, 200), models, strict=False):
        load(path)
        (made,) = cache.glob(f"{path.stem}-*")
        os.utime(made, (0, made.stat().st_mtime - age))
    num_bytes = list_models()[0].num_bytes
    load(models[0], limit=2 * num_bytes)  # which was used last now
    load(models[2], limit=2 * num_bytes + 100)
    assert [one.name[0] for one in list_models()] == ["a", "c"]


def test_with_size_0_no_cache_is_made(model: Path, quantizer: Quantizer, cache: Path) -> None:
    made = load(model, limit=0)
    load(model, limit=0)
    assert quantizer.num_calls == 2 * len(made)
    assert not cache.exists()


@pytest.mark.parametrize("where", ["folder", "file"])
def test_a_cache_that_cannot_be_written_is_logged_once(
    where: str,
    model: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if where == "folder":
        cache.parent.parent.write_text("a file")
    else:
        monkeypatch.setattr(os, "fsync", lambda file: os.truncate("/nowhere", 0))  # an OSError
    load(model)
    (event,) = events(caplog, "quantized_weights_not_cached")
    assert event["option"] == "XDG_CACHE_HOME"
    gc.collect()
    assert where == "folder" or list(cache.iterdir()) == []


def test_a_load_that_fails_leaves_nothing(own_folder: Path, cache: Path) -> None:
    path = write_model(own_folder / "model", CONFIG, 0)
    checkpoint = random_checkpoint(CONFIG, 0)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.tensor_names()}
    tensors[UP][0, 0] = torch.nan
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ConfigError, match="not finite"):
        load(path)
    gc.collect()
    assert list(cache.iterdir()) == []


def test_the_file_is_safetensors(model: Path, cache: Path) -> None:
    made = load(model)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert header["__metadata__"]["kind"] == "q8_0"
    assert header[UP]["shape"] == list(made[UP].shape)
