"""What `make release` writes, and the fragments of the changelog."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenmill

ROOT = Path(__file__).parents[1]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(ROOT / "scripts/release")
    import notes

    yield notes
    del sys.modules["notes"]


def test_the_notes_have_the_newest_changes_and_each_file_with_its_system(
    notes: Any, tmp_path: Path
) -> None:
    wheel = tmp_path / "tokenmill-9-py3-none-manylinux_2_34_x86_64.whl"
    sdist = tmp_path / "tokenmill-9.tar.gz"
    wheel.write_bytes(b"a" * 2_000_000)
    sdist.write_bytes(b"")
    text = notes.write_notes(tmp_path / "NOTES.md", [wheel, sdist]).read_text()
    assert text.startswith(f"## {tokenmill.__version__} ")
    assert f"| {wheel.name} | 2.0 MB | Linux with glibc 2.34 | `" in text
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert f"| {sdist.name} | 0.0 MB | any; kernels need a compiler | `{empty}` |" in text


def test_fragments_have_a_type_that_the_changelog_knows() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    types = "|".join(one["directory"] for one in settings["type"])
    for path in (ROOT / "changes").iterdir():
        if path.name not in ("README.md", "template.md"):
            assert re.fullmatch(rf"[\w-]+\.({types})\.md", path.name), path.name
            assert path.read_text().strip().endswith("."), path.name
