"""Our own plugins come in by the same door as everybody's."""

from __future__ import annotations

import ast
from pathlib import Path

import tokenmill.plugins

PUBLIC = {
    "client",
    "errors",
    "events",
    "fallback",
    "hookspecs",
    "log",
    "outputs",
    "policy",
    "registry",
    "speculation",
}
FOLDER = Path(tokenmill.plugins.__file__).resolve().parent


def test_plugins_import_only_public_names_and_no_other_plugin() -> None:
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level > 1:
                room, _, module = (node.module or "").partition(".")
                assert (node.level, room) == (3, "core"), f"{file}: {ast.unparse(node)}"
                assert module in PUBLIC, f"{file}: {ast.unparse(node)}"
