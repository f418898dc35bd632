"""`tokenmill model inspect`: what it says is what serving does, and no weights are read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny_checkpoints import TARGET, write_model
from tests.backends.weights.gguf_writing import write_gguf
from tests.oracle import tiny_smolvlm
from tokenmill.api.cli import main
from tokenmill.backends.machine import places
from tokenmill.backends.machine.threads import ThreadShare
from tokenmill.backends.running.parts import memory_need
from tokenmill.backends.running.parts.precision import PRICES
from tokenmill.backends.weights.files.safetensors_files import SafetensorsFiles
from tokenmill.backends.weights.gguf.checkpoint import GGUFCheckpoint

BIG = replace(TARGET, num_layers=2, hidden_size=256, intermediate_size=512, vocab_size=200)


@pytest.fixture
def directory(own_folder: Path) -> Path:
    return write_model(own_folder / "tiny", BIG, 0)


@pytest.fixture
def gguf(own_folder: Path, directory: Path) -> Path:
    path = own_folder / "tiny-Q8_0.gguf"
    write_gguf(path, random_checkpoint(BIG, 0), kind=Kind.Q8_0)
    return path


@pytest.fixture(autouse=True)
def no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, name: str) -> Any:
        raise AssertionError(f"{name} was read")

    for reader in (GGUFCheckpoint, SafetensorsFiles):
        monkeypatch.setattr(reader, "tensor", fail)
    monkeypatch.setattr(GGUFCheckpoint, "matrix", fail)


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """The report as JSON."""
    assert main(["model", "inspect", *arguments, "--device", "cpu", "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_a_directory_is_described(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = inspect(capsys, str(directory), "--dtype", "float32")
    tensors = [
        random_checkpoint(BIG, 0).tensor(n) for n in random_checkpoint(BIG, 0).tensor_names()
    ]
    assert report["name"] == "tiny"
    assert report["architecture"] == BIG.architecture
    assert report["num_parameters"] == sum(tensor.numel() for tensor in tensors)
    assert report["file_bytes"] == report["weight_bytes"] == sum(t.nbytes for t in tensors)
    per_layer = 2 * BIG.num_kv_heads * BIG.head_size * 4
    assert report["kv_bytes_per_token"] == BIG.num_layers * per_layer
    assert report["context_that_fits"] == report["max_model_len"] == BIG.max_position_embeddings
    assert report["refusal"] is None


def test_tensors_are_grouped_by_format(gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = str(gguf.parent / "tiny")
    report = inspect(capsys, str(gguf), "--tokenizer", tokenizer, "--dtype", "float32")
    groups = {one["group"]: one for one in report["groups"]}
    counts = {group: one["num_tensors"] for group, one in groups.items()}
    expected = {"norms": 5, "embeddings": 1, "attention": 8, "feed-forward": 6}
    assert counts == expected | ({} if BIG.tie_word_embeddings else {"head": 1})
    assert groups["attention"]["format"] == "Q8_0" and groups["norms"]["format"] == "float32"
    assert groups["attention"]["kept_as"] == "float32"  # --dtype float32 dequantizes
    assert sum(one["num_bytes"] for one in report["groups"]) == report["file_bytes"]


def test_each_choice_of_precision_has_its_memory_and_its_price(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("float32", "bfloat16"):
        report = inspect(capsys, str(directory), "--dtype", name)
        choices = {one["name"]: one for one in report["dtypes"]}
        assert list(choices) == ["float32", "bfloat16", "float16"]
        for size in ("weight_bytes", "kv_bytes_per_token"):
            assert choices[name][size] == report[size]
        assert choices[name]["computed_in"] == report["dtype"]
        assert choices[name]["mean_difference"] == PRICES[name]
    float16 = choices["float16"]
    if float16["refusal"] is None:  # with native kernels
        smaller, larger = choices["bfloat16"]["weight_bytes"], choices["float32"]["weight_bytes"]
        assert smaller < float16["weight_bytes"] < larger
        assert (float16["computed_in"], float16["mean_difference"]) == ("float32", 0.0013)
    assert main(["model", "inspect", str(directory), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "0.022" in printed and "measured on a CPU with the default model" in printed


def test_backends_come_with_the_reasons_against_others(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = inspect(capsys, str(directory), "--dtype", "float32")
    attention = report["attention_backend"]
    assert attention["name"] in ("cpu", "torch")
    assert "it runs on NVIDIA GPUs, not on cpu" in attention["others"]["cuda-paged"]
    linear = report["linear_backend"]
    assert linear["name"] == "torch"
    assert any("bfloat16, not in float32" in reason for reason in linear["others"]["cpu"])


def test_a_backend_that_is_named_has_no_others(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = inspect(capsys, str(directory), "--attention-backend", "torch")
    assert report["attention_backend"] == {"name": "torch", "others": {}}


def test_less_memory_leaves_less_context(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = inspect(capsys, str(directory), "--dtype", "float32")
    rotation = BIG.max_position_embeddings * BIG.head_size * 8
    [rank] = report["ranks"]
    free = rank["weights"] + rotation + rank["activations"] + 35 * report["kv_bytes_per_token"]
    monkeypatch.setattr(memory_need, "loadable_memory", lambda: free)
    assert inspect(capsys, str(directory), "--dtype", "float32")["context_that_fits"] == 32


@pytest.mark.parametrize("size", ["1", "2"])
def test_a_model_that_is_too_large_is_described_and_refused_as_serve_does(
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    size: str,
) -> None:
    """Each of two ranks would fit, but not both together."""
    free = 4 << 20 if size == "2" else 1 << 20
    monkeypatch.setattr(memory_need, "loadable_memory", lambda: free)
    flags = ["--dtype", "float32", "--device", "cpu", "--tensor-parallel-size", size]
    for command in (["generate", "a", "--model"], ["model", "inspect"]):
        assert main([*command, str(directory), *flags]) == 1
    printed = capsys.readouterr()
    first, second = [one for one in printed.err.splitlines() if one.startswith("error: ")]
    assert first == second and "are available: " in first
    assert "context:      0 tokens fit" in printed.out


def test_each_rank_of_each_replica_is_described(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        places, "divide_cores", lambda number: (ThreadShare(cpus=(), num_threads=1),) * number
    )
    alone = inspect(capsys, str(directory), "--dtype", "float32")
    flags = ("--dtype", "float32", "--tensor-parallel-size", "2", "--max-num-batched-tokens", "64")
    report = inspect(capsys, str(directory), *flags)
    first, second = report["ranks"]
    assert first["kv_per_token"] == second["kv_per_token"] == alone["kv_bytes_per_token"] // 2
    assert report["weight_bytes"] == first["weights"] + second["weights"] > alone["weight_bytes"]
    per_token = (BIG.num_layers * 2 * BIG.hidden_size + BIG.vocab_size // 2) * 4
    assert report["sent_bytes_per_token"] == per_token and alone["sent_bytes_per_token"] == 0
    assert report["sent_bytes_per_full_step"] == 64 * per_token
    monkeypatch.setattr(memory_need, "loadable_memory", lambda: 8 << 20)
    shared = inspect(capsys, str(directory), *flags, "--data-parallel-size", "2", status=1)
    assert shared["available_bytes"] == 4 << 20
    assert shared["refusal"].endswith(
        "lower --data-parallel-size or use a smaller model, or a file with fewer bits per weight"
    )


@pytest.mark.parametrize("damage", ["config", "tokenizer", "weights", "length"])
def test_other_refusals_are_those_of_serve(
    damage: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max-model-len", "100000"] if damage == "length" else []
    file = {"config": "config.json", "tokenizer": "tokenizer.json", "weights": "model.safetensors"}
    if damage in file:
        (directory / file[damage]).write_bytes(b"{")
    for command in (["generate", "a", "--model"], ["model", "inspect"]):
        assert main([*command, str(directory), *flags]) == 1
    first, second = [
        one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")
    ]
    assert first == second


def test_an_executor_is_refused_as_serve_does(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-tp", "2", "--distributed-executor-backend", "uni"]
    for command in (["generate", "a", "--model"], ["model", "inspect"]):
        assert main([*command, str(directory), "--device", "cpu", *flags]) == 1
    first, second = [
        one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")
    ]
    assert first == second and "no executor supports this configuration" in first


@pytest.mark.parametrize(("size", "name"), [("1", "inprocess"), ("2", "multiprocess")])
def test_the_executor_is_named(
    size: str, name: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(capsys, str(directory), "-tp", size)["executor"] == name


def test_the_table_is_for_people(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "inspect", str(directory), "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    for words in ("architecture: LlamaForCausalLM, native", "executor:     inprocess",
                  "per token", "attention  ", "KEPT AS",
                  "attention backend: ", "linear backend: "):  # fmt: skip
        assert words in text
    (flash,) = [line for line in text.splitlines() if line.startswith("  flash-attn: ")]
    assert flash == "  flash-attn: it runs on NVIDIA GPUs, not on cpu (--json has all reasons)"


def test_the_memory_for_images_is_shown(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny_smolvlm.write_model(own_folder / "smolvlm"))
    default = inspect(capsys, path)["images"]
    two = inspect(capsys, path, "--limit-mm-per-prompt", '{"image": 2}')["images"]
    assert (default["num_images"], default["tokens_per_image"]) == (8, 17 * 4)
    assert two["cache"] * 4 == default["cache"] > 0 and two["pixels"] * 4 == default["pixels"] > 0
    assert two["tower"] == default["tower"] > 0
    assert inspect(capsys, path, "--language-model-only")["images"] is None
    main(["model", "inspect", path, "--device", "cpu", "--limit-mm-per-prompt", '{"image": 2}'])
    shown = capsys.readouterr().out
    assert "memory for the encoder" in shown and "for 2 per prompt, of at most 68 tokens" in shown
