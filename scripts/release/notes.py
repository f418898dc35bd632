"""The notes of a release: its changes, and its files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def write_notes(path: Path, packages: Sequence[Path]) -> Path:
    """Write the newest section of CHANGELOG.md, and a table of the files."""
    rows = ["| file | size | oldest system | SHA-256 |", "|---|---|---|---|"]
    for package in packages:
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        size = f"{package.stat().st_size / 1e6:.1f} MB"
        rows.append(f"| {package.name} | {size} | {oldest_system(package.name)} | `{digest}` |")
    path.write_text("\n".join([newest_changes(), "", "## Files", "", *rows, ""]), encoding="utf-8")
    return path


def newest_changes() -> str:
    """The first section of CHANGELOG.md."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return "## " + text.split("\n## ")[1].strip()


def oldest_system(name: str) -> str:
    """The system that a file's tag asks for, for example "glibc 2.34"."""
    tag = re.search(r"manylinux_(\d+)_(\d+)", name)
    return f"Linux with glibc {tag[1]}.{tag[2]}" if tag else "any; kernels need a compiler"
