"""Every link of the documentation leads somewhere, and every path that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import DOCS, OTHERS, ROOT, name_of, prose

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FOLDERS = ("src", "docs", "examples", "benchmarks", "scripts")
ROOMS = ("api", "backends", "core", "plugins", "testing")
PATH = re.compile(rf"(?:{'|'.join((*FOLDERS, *ROOMS))})/[\w./-]+")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges and the site make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        is_page = target.suffix == ".md"  # the anchor of a picture is for the site's styles
        if not target.exists() or (anchor and is_page and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", [*OTHERS, *DOCS], ids=name_of)
def test_every_relative_link_leads_to_a_file_and_an_anchor(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`\n[1](#a-b) [2](#c) [3](page.md#a-b) [4](page.md#d) [5](gone.md)\n")
    assert broken_links(page) == ["#c", "page.md#d", "gone.md"]


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_links_of_the_site_stay_in_the_site(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        target = (page.parent / link.partition("#")[0]).resolve()
        assert re.match(r"https?:", link) or target.is_relative_to(ROOT / "docs"), link


@pytest.mark.parametrize("page", [*OTHERS[:2], *DOCS], ids=name_of)
def test_every_path_in_code_exists(page: Path) -> None:
    paths = [text for text in CODE.findall(prose(page)) if PATH.fullmatch(text)]
    missing = [p for p in paths if not (ROOT / p).exists() and not (ROOT / "src" / p).exists()]
    assert missing == []


@pytest.mark.parametrize("page", [*OTHERS, *DOCS], ids=name_of)
def test_no_page_installs_tokenmill_from_an_index_where_it_is_not(page: Path) -> None:
    assert not re.search(r"pip install [^#\n]*(?<![\w/.-])tokenmill(?![\w/-])", page.read_text())


def test_every_claim_about_performance_names_a_result() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    written = re.compile(r"<!-- (\w+) -->.*?<!-- end of \1 -->", re.DOTALL)
    by_hand = written.sub("", page).splitlines()
    rows = [row for row in by_hand if row.startswith("| ") and "| result |" not in row]
    assert rows
    for row in rows:
        results = re.findall(r"`(benchmarks/results/\w+\.json)`", row)
        assert results and all((ROOT / name).exists() for name in results), row
