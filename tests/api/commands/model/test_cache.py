"""`tokenmill model cache` lists and removes quantized models."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill.api.cli import main, make_parser
from tokenmill.api.commands.flags.engine import engine_config
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.models.opening import choose_model_impl, open_model
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cached(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two models, which were quantized as an engine does."""
    import torch

    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    config = EngineConfig(quantize_on_load="q8_0", device="cpu")
    impl = choose_model_impl(PluginHost.load(config))
    small = replace(TARGET, num_layers=1)
    paths = [write_model(own_folder / name, small, 0) for name in ("first", "second")]
    for path in paths:
        checkpoint, _ = open_model(path, impl, config)
        load_decoder(
            checkpoint, dtype=torch.float32, device=torch.device("cpu"), progress=no_progress
        )
    return paths


def names(capsys: Output) -> list[str]:
    assert main(["model", "cache", "list", "--json"]) == 0
    return [one["name"] for one in json.loads(capsys.readouterr().out)]


def test_models_are_listed(cached: list[Path], capsys: Output) -> None:
    assert main(["model", "cache", "list", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert [first["model"], second["model"]] == [str(path) for path in cached]
    assert first["kind"] == "q8_0"
    assert first["name"].startswith("first-q8_0-")
    assert first["num_bytes"] > 1000
    used = [datetime.fromisoformat(one["last_used"]) for one in (first, second)]
    assert used == sorted(used)


def test_the_table_has_a_row_per_model(cached: list[Path], capsys: Output) -> None:
    (Path("cache/tokenmill/models") / "bad.safetensors").write_text("damaged")
    assert main(["model", "cache", "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "KIND", "SIZE", "LAST", "USED", "MODEL"]
    assert [row.rstrip().split("  ")[-1].strip() for row in rows] == [
        *(str(path) for path in cached),
        "the file is damaged",
    ]


def test_named_models_are_removed(capsys: Output) -> None:
    first, second = names(capsys)
    assert main(["model", "cache", "remove", first]) == 0
    assert names(capsys) == [second]


def test_an_unknown_name_removes_nothing(capsys: Output) -> None:
    before = names(capsys)
    assert main(["model", "cache", "remove", before[0], before[1][:-1]]) == 1
    error = capsys.readouterr().err
    assert f"no cached model is called {before[1][:-1]!r}. Did you mean {before[1]!r}?" in error
    assert main(["model", "cache", "remove", "../models/" + before[0]]) == 1
    assert "no cached model is called" in capsys.readouterr().err
    assert names(capsys) == before


def test_all_models_are_removed(capsys: Output) -> None:
    assert main(["model", "cache", "clear"]) == 0
    assert names(capsys) == []
    assert main(["model", "cache", "list"]) == 0
    assert capsys.readouterr().out == "no model is cached\n"


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("3G", 3 << 30), ("100", 100)])
def test_the_size_of_the_cache_is_a_flag(text: str, size: int) -> None:
    args = make_parser().parse_args(["serve", "--model-cache-size", text])
    assert engine_config(args).model_cache_size == size


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="--model-cache-size must be between 0"):
        EngineConfig(model_cache_size=-1)
