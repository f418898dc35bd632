"""The pages of the documentation, and the scripts that write some of them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
OTHERS += sorted(ROOT.glob("examples/*/README.md"))
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    """A page's path from the root, for the names of tests."""
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def run_script(name: str) -> dict[str, Any]:
    """The names that a script of scripts/docs defines, without its main part."""
    return runpy.run_path(str(ROOT / "scripts/docs" / name))
