"""Opening a model: who runs it, and what is read for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill.backends.models.native import NativeModels
from tokenmill.backends.models.opening import open_model
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError


class Dense(NativeModels):
    """An implementation that computes with weights in floating point only."""

    name = "dense"
    keeps_packed = False


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m", replace(TARGET, num_layers=1), 0)


def test_config_json_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_path: Any = Path.open

    def recording(path: Path, *arguments: Any, **options: Any) -> Any:
        opened.append(path.name)
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", recording)
    open_model(model, NativeModels, EngineConfig())
    assert opened.count("config.json") == 1


def test_quantizing_on_load_is_refused_where_models_have_dense_weights(model: Path) -> None:
    config = EngineConfig(quantize_on_load="q8_0")
    open_model(model, NativeModels, config)
    with pytest.raises(ConfigError, match=r"q8_0 is not possible: .*'dense' computes with"):
        open_model(model, Dense, config)
