"""`make docs` builds a site that needs no network, without warnings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from .pages import DOCS, ROOT

LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*src=["']?(https?:)?//|<link[^>]*href=["']?https?://"""
)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a copy of the site in `folder`, and treat warnings as errors."""
    shutil.copytree(ROOT / "docs", folder / "docs", dirs_exist_ok=True)
    shutil.copy(ROOT / "zensical.toml", folder)
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_every_page_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "build/site"
    for page in DOCS:
        html = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert not LOADED.search(html.read_text(encoding="utf-8")), html.name


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text()))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in DOCS}


def test_a_link_to_a_page_that_does_not_exist_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/broken.md").write_text("# Broken\n\n[gone](gone.md)\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "page does not exist" in done.stdout + done.stderr
