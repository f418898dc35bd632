"""The table "Where to change what" names files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PATH = re.compile(r"`((?:src|tests)/[\w./]+)`")


def test_every_place_and_every_test_of_the_table_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.split("## Where to change what")[1].split("\n## ")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for change, places, tests in rows:
        named = _PATH.findall(tests)
        assert named, f"{change.strip()}: no test"
        for path in (*_PATH.findall(places), *named):
            assert (ROOT / path).exists(), f"{change.strip()}: {path} does not exist"
