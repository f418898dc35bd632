"""Writes docs/plugins/names.md, the public names for plugins, and the list of the stable ones.

python scripts/docs/write_names.py

tests/docs/test_stable_names.py says which changes of a stable name are allowed.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenmill.compute
import tokenmill.plugin
import tokenmill.testing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/plugins/names.md"
STABLE = ROOT / "tests/docs/stable_names.txt"
INTRODUCTION = """\
# Public names for plugins

This page is generated: `make docs` writes it. A plugin imports only these names.

- **Stable**: until the [hook API](../hooks.md) has a new number, there are only additions with
  defaults. A test of the repository compares names, fields and parameters with a list.
- **Provisional**: a minor version may change it, with a line in the changelog. This is what
  computes, because the engine is new on GPUs.
"""
REQUIRED, OPTIONAL = "required", "optional"


def page() -> str:
    """The page as the code is now."""
    parts = [
        INTRODUCTION,
        _section("tokenmill.plugin", "stable", tokenmill.plugin),
        _section("tokenmill.compute", "provisional", tokenmill.compute),
        _section("tokenmill.testing", "provisional", tokenmill.testing),
    ]
    return "\n".join(parts)


def stable_names() -> list[str]:
    """One line for each stable name, and for each member that it has."""
    lines = []
    for name in sorted(tokenmill.plugin.__all__):
        lines += [
            name,
            *(f"{name}{member}" for member in _members(getattr(tokenmill.plugin, name))),
        ]
    return lines


def _section(title: str, tier: str, module: Any) -> str:
    rows = [f"| `{name}` | {_summary(getattr(module, name))} |" for name in sorted(module.__all__)]
    return "\n".join((f"## `{title}`: {tier}\n", "| name | |", "|---|---|", *rows, ""))


def _summary(value: object) -> str:
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return ""
    text = inspect.getdoc(value) or ""
    if dataclasses.is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}("):
        return ""  # made by dataclasses
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def _members(value: Any) -> Iterator[str]:
    """The parameters of a function; the fields, properties and methods of a class."""
    if dataclasses.is_dataclass(value) and inspect.isclass(value):
        for field in dataclasses.fields(value):
            no_default = field.default is field.default_factory is dataclasses.MISSING
            yield f".{field.name}: {REQUIRED if no_default and field.init else OPTIONAL}"
    if inspect.isclass(value):
        for name, member in sorted(vars(value).items()):
            if name.startswith("_") and name != "__call__":
                continue
            if isinstance(member, property):
                yield f".{name}: property"
            elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
                yield f".{name}()"
                yield from (f".{name}({one})" for one in _parameters(getattr(value, name)))
    elif inspect.isfunction(value):
        yield from (f"({one})" for one in _parameters(value))
    elif inspect.ismodule(value):
        yield from (f".{name}" for name in sorted(value.KINDS))


def _parameters(function: Any) -> Iterator[str]:
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "self":
            is_free = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            has_default = is_free or parameter.default is not parameter.empty
            yield f"{name}: {OPTIONAL if has_default else REQUIRED}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    STABLE.write_text("\n".join(stable_names()) + "\n", encoding="utf-8")
