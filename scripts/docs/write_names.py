"""Writes docs/plugins/names.md, and adds new lines to the list of the stable tier.

python scripts/docs/write_names.py

tests/docs/test_stable_tier.py compares both with the code. A line of the list is never
removed here: it is a promise, and only a new HOOK_API may break it.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import GenericAlias, ModuleType, UnionType
from typing import Any

import tokenmill
from tokenmill import compute, plugin, testing
from tokenmill.core.contract.hookspecs import HookSpecs
from tokenmill.core.host.hook_checks import HOOKS
from tokenmill.core.kinds import KINDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/plugins/names.md"
LIST = ROOT / "tests/docs/stable_tier.txt"
INTRODUCTION = """\
# Public names

This page is generated: `make docs` writes it. It lists every public name with its
[tier](../plugins.md#two-tiers). Names that are not on this page are internal."""
MODULES = {
    "tokenmill.plugin": (plugin, "policies, observers, parsers, routers"),
    "tokenmill.compute": (
        compute,
        "attention, products, models, weights, executors",
    ),
    "tokenmill.testing": (testing, "the conformance kit and the simulator"),
    "tokenmill": (tokenmill, "the library; see the [API reference](../api.md)"),
}
IMPLEMENTED = (
    "DraftLengthPolicy",
    "ReasoningParser",
    "Router",
    "SchedulingPolicy",
    "Speculator",
    "ToolCallParser",
)
"""Protocols that plugins implement: another member would break each of them."""

TRANSFORMS = {"AnswerTransform", "RequestText", "Transform", "Transformed"}
ROUTES = {
    *("ChatAnswer", "ChatEnd", "Grammar", "ModelInfo", "ParsedAnswer", "Route", "RouteAnswer"),
    *("RouteCall", "RouteChat", "RouteStream", "Routes", "ServedModel", "ToolCall", "collect"),
}
MEDIA = {"MediaProcessor", "MediaSample", "Pixels", "ProcessedImage"}
PROVISIONAL = TRANSFORMS | ROUTES | MEDIA
"""Names of `tokenmill.plugin` that may still change."""
STABLE = [name for name in plugin.__all__ if name not in PROVISIONAL]


def page() -> str:
    """The page, as the code is now."""
    parts = [INTRODUCTION]
    for title, (module, what) in MODULES.items():
        rows = (
            f"| `{name}` | {'stable' if name in STABLE else 'provisional'} |"
            for name in names_of(module)
        )
        parts += [f"## `{title}`: {what}", "\n".join(("| name | tier |", "|---|---|", *rows))]
    rows = (f"| `kinds.{kind.name.upper()}` | {kind.tier} |" for kind in KINDS.values())
    parts += ["## Kinds", "\n".join(("| kind | tier |", "|---|---|", *rows))]
    return "\n\n".join(parts) + "\n"


def names_of(module: ModuleType) -> list[str]:
    return sorted(module.__all__, key=str.lower)


def contract() -> list[str]:
    """The stable tier, one line for each name, field, argument, result and need."""
    lines = [line for name in STABLE for line in described(name, getattr(plugin, name))]
    for hook in HOOKS:
        signature = inspect.signature(getattr(HookSpecs, hook))
        lines += [f"hook {hook} takes {name}" for name in list(signature.parameters)[1:]]
        lines.append(f"hook {hook} returns {signature.return_annotation}")
    for kind in KINDS.values():
        if kind.tier == "stable":
            lines.append(f"kinds.{kind.name.upper()} is stable")
            lines += [f"kinds.{kind.name.upper()} needs {one}" for one in kind.needs]
    return sorted(set(lines))


def described(name: str, value: Any) -> Iterator[str]:
    """The lines of one public name."""
    yield name
    if isinstance(value, int | UnionType | GenericAlias):
        yield f"{name} is {value}"
    elif inspect.isclass(value) and issubclass(value, enum.Enum):
        yield from (f"{name}.{one.name} is {one.value!r}" for one in value)
    elif inspect.isclass(value):
        if "__init__" in vars(value) and not getattr(value, "_is_protocol", False):
            yield from arguments(name, value.__init__)
        for base in value.__mro__:
            if base.__module__.startswith("tokenmill"):
                yield from members(name, base)
    elif inspect.isfunction(value):
        yield from arguments(name, value)


def members(name: str, base: type) -> Iterator[str]:
    """The lines of the public members that one class defines."""
    for member, annotation in vars(base).get("__annotations__", {}).items():
        if not member.startswith("_"):
            yield f"{name}.{member} is {annotation}"
    for member, value in vars(base).items():
        value = getattr(value, "__func__", value)  # of a class method
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"{name}.{member} is {value.fget.__annotations__['return']}"
        elif inspect.isfunction(value):
            yield from arguments(f"{name}.{member}", value)


def arguments(path: str, function: Any) -> Iterator[str]:
    """The lines of a function: its result, and each argument, with its place unless it is named."""
    signature = inspect.signature(function)
    yield f"{path}() returns {signature.return_annotation}"
    for place, one in enumerate(signature.parameters.values()):
        if one.name not in ("self", "cls"):
            where = one.kind.description if one.kind != one.POSITIONAL_OR_KEYWORD else place
            yield f"{path}() takes {one.name} [{where}]: {one.annotation}{default_of(one)}"


def default_of(parameter: inspect.Parameter) -> str:
    """The default of a parameter. An object's fields are lines of their own, if it is public."""
    if parameter.default is parameter.empty:
        return ""
    is_plain = isinstance(parameter.default, str | int | float | tuple | frozenset | type(None))
    return f" = {parameter.default!r}" if is_plain else " = ..."


def broken(promised: set[str], now: set[str]) -> list[str]:
    """The differences that break plugins: all but additions with a default."""
    known = {line.partition(" ")[0] for line in promised}
    return sorted(
        [f"gone or changed: {line}" for line in promised - now]
        + [f"added: {line}" for line in now - promised if breaks(line, known)]
    )


def breaks(line: str, known: set[str]) -> bool:
    """Whether a new line breaks plugins. `known` are the names and functions of promised lines."""
    path, _, rest = line.partition(" ")
    if rest.startswith("takes") and path != "hook":
        is_optional = " = " in rest or "variadic" in rest
        return path in known and not (is_optional and is_called(path))
    if rest.startswith("needs"):
        return path in known
    return path not in known and path.partition(".")[0] in known and not is_called(path)


def is_called(path: str) -> bool:
    """Whether plugins only call or read this name, and do not implement it."""
    return path.partition(".")[0] not in IMPLEMENTED


def promised() -> set[str]:
    return set(LIST.read_text(encoding="utf-8").splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    kept = promised() if LIST.exists() else set()
    LIST.write_text("\n".join(sorted(kept.union(contract()))) + "\n", encoding="utf-8")
