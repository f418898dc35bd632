"""Built-in plugins, examples and documents use the doors that a third party uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILT_IN = sorted((ROOT / "src/plugins").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOORS = {
    "tokenmill", "tokenmill.config", "tokenmill.plugin", "tokenmill.compute", "tokenmill.testing",
}  # fmt: skip


def test_built_in_plugins_import_the_door_for_policies_and_no_other_plugin() -> None:
    found = 0
    for file in BUILT_IN:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > 1:
                level = len(file.relative_to(ROOT / "src").parts)
                assert (node.level, node.module) == (level, "plugin"), (
                    f"{file}: {ast.unparse(node)}"
                )
                found += 1
    assert found >= 13


@pytest.mark.parametrize("file", [*EXAMPLES, *DOCUMENTS], ids=lambda path: path.name)
def test_examples_and_documents_import_the_public_doors_only(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    modules = set(re.findall(r"^\s*(?:from|import) (tokenmill(?:\.\w+)*)", text, re.MULTILINE))
    assert modules <= DOORS
