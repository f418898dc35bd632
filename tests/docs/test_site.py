"""`make docs` builds a site without warnings and broken links, which needs no network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from tokenmill import __version__

from .pages import DOCS, ROOT, run_script

LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*src=["']?(https?:)?//|<link[^>]*href=["']?https?://"""
)
FINISHING = run_script("finish_site.py")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a copy of the site in `folder`, and treat warnings as errors."""
    shutil.copytree(ROOT / "docs", folder / "docs", dirs_exist_ok=True)
    for name in ("zensical.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished site, without the address of a repository."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    FINISHING["Site"](folder / "build/site", None).finish()
    return folder / "build/site"


def pages(site: Path) -> dict[Path, str]:
    """The HTML of every page of the documentation."""
    files = (site / page.relative_to(ROOT / "docs").with_suffix(".html") for page in DOCS)
    return {file: file.read_text(encoding="utf-8") for file in files}


def broken_links(pages: dict[Path, str]) -> list[str]:
    """The links of pages, and the pictures, that lead to no file or no anchor."""
    broken = []
    for page, html in pages.items():
        for link in re.findall(r'(?:href|src)="?([^">\s]+)', html):
            path, _, anchor = unescape(link).partition("#")
            target = page.parent / path if path else page
            if re.match(r"[a-z]+:", link):
                continue
            is_anchor = anchor and target.suffix == ".html"  # a picture has #only-dark
            if not target.is_file() or (is_anchor and f'id="{anchor}"' not in target.read_text()):
                broken.append(f"{page.name}: {link}")
    return broken


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page, html in pages(site).items():
        assert not LOADED.search(html), page.name


def test_no_link_of_the_site_is_broken(site: Path) -> None:
    assert broken_links(pages(site)) == []


def test_a_broken_link_of_the_site_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text('<h1 id="b"><a href="#b"><a href="#c"><a href="d.html"><img src="e.svg">')
    found = broken_links({page: page.read_text()})
    assert found == ["a.html: #c", "a.html: d.html", "a.html: e.svg"]


def test_paths_of_the_repository_are_links(site: Path) -> None:
    html = (site / "plugins/attention-backend.html").read_text()
    path = "src/backends/attention/base.py"
    assert f'<a href="../source/{path}.html"><code>{path}</code></a>' in html
    assert "class AttentionBackend" in (site / f"source/{path}.html").read_text()
    listing = (site / "source/src/core/engine.html").read_text()
    assert 'href="engine/step.py.html"' in listing
    assert FINISHING["Site"](site, "https://forge.example/org/repo/")._target(
        Path(path), "../"
    ) == (f"https://forge.example/org/repo/blob/HEAD/{path}")


def test_every_page_shows_version_and_date(site: Path) -> None:
    for page, html in pages(site).items():
        assert re.search(rf"tokenmill {re.escape(__version__)}, \d{{4}}-\d\d-\d\d", html), page.name


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text()))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in DOCS}


def test_a_link_to_a_page_that_does_not_exist_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/broken.md").write_text("# Broken\n\n[gone](gone.md)\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "page does not exist" in done.stdout + done.stderr
