"""The errors and log events that the documentation names are those of the code."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmill.core.kinds import SLOTS

from .pages import DOCS, ROOT, name_of, prose

SHOWN = re.findall(
    r"^```text\n(.*?)\n```$",
    (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)
EVENT = re.compile(r"\bevents? `([a-z]+_[a-z_]+)`")
GAP = "…"


@functools.cache
def messages() -> frozenset[str]:
    """All texts with formatted parts, and all plain ones. A formatted part is a GAP."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py"))
    return frozenset(text for tree in trees for node in ast.walk(tree) for text in texts(node))


def texts(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(map(shown_part, parts))


def shown_part(part: ast.expr) -> str:
    """The text of a part that is a constant, or a field that is `named`."""
    match part:
        case (
            ast.Constant(value=text)
            | ast.FormattedValue(
                value=ast.Call(func=ast.Name(id="named"), args=[ast.Constant(value=text)])
            )
        ):
            return str(text)
    return GAP


def squeezed(text: str) -> str:
    """The text with one gap where several stand together."""
    return re.sub(rf"{GAP}(?:[ ]?{GAP})*", GAP, text)


@pytest.mark.parametrize("shown", SHOWN)
def test_every_error_of_the_page_on_troubleshooting_is_one_of_the_code(shown: str) -> None:
    assert squeezed(shown) in {squeezed(text) for text in messages()}


def test_a_message_that_the_code_does_not_have_is_found() -> None:
    assert "cannot listen on …:…: …; choose another with --host or --port" in messages()
    assert "cannot listen on …:…: …; choose another with --port" not in messages()


@pytest.mark.parametrize("page", DOCS, ids=name_of)
def test_every_event_exists(page: Path) -> None:
    known = messages() | {f"{slot}_chosen" for slot in SLOTS}
    assert [name for name in EVENT.findall(prose(page)) if name not in known] == []
