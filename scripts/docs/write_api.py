"""Writes docs/api.md from docstrings: every public name of `tokenmill`.

python scripts/docs/write_api.py

tests/docs/test_generated.py compares the file with the code.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe

import tokenmill
from tokenmill.core.requests.sampling_params import (
    PLACES,
    SAMPLED,
    SamplingParams,
    described,
    meaning_of,
)

PAGE = Path(__file__).parents[2] / "docs/api.md"
WIDTH = 96
"""Characters of a signature on one line."""

INTRODUCTION = """\
# API reference

This page is generated from the docstrings: `make docs` writes it. It lists every public name:
`from tokenmill import LLM`. Other modules may change without notice, except those that
[plugins](plugins.md) import: `tokenmill.plugin` and `tokenmill.compute`.
"""

SECTIONS = {
    "Engines": ("LLM", "AsyncEngine", "EngineConfig"),
    "HTTP": ("create_app", "ServerSettings"),
    "Requests": (
        "SamplingParams",
        "OutputKind",
        "Grammar",
        "GrammarKind",
        "PoolingParams",
        "Pooling",
        "RequestOptions",
    ),
    "Results": (
        "RequestOutput",
        "CompletionOutput",
        "FinishReason",
        "TokenLogprobs",
        "RequestMetrics",
        "EmbeddingRequestOutput",
        "EmbeddingOutput",
        "PoolingRequestOutput",
        "PoolingOutput",
        "ScoringRequestOutput",
        "ScoringOutput",
    ),
    "Errors": (
        "TokenmillError",
        "ConfigError",
        "PluginError",
        "InvalidRequestError",
        "OverloadedError",
        "RateLimitedError",
        "RequestFailedError",
        "EngineStoppedError",
        "WrongContextError",
    ),
    "For plugins": ("hookimpl", "HOOK_API", "__version__"),
}
MODULES = {
    "hookimpl": "tokenmill.core.contract.hookspecs",
    "HOOK_API": "tokenmill.core.contract.hookspecs",
    "__version__": "tokenmill.version",
}
"""Where values are defined. Classes and functions know it."""
ELSEWHERE = {"EngineConfig": "Its fields are the [engine flags](configuration.md#engine-flags)."}
"""Classes whose fields another page lists."""


def page() -> str:
    """The page, as the code is now."""
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts += [f"## {title}", *(describe(name) for name in names)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def describe(name: str) -> str:
    found = getattr(tokenmill, name)
    if inspect.isclass(found):
        return describe_class(found)
    source = source_of(MODULES.get(name, getattr(found, "__module__", "")))[name]
    parts = [f"### `{name}`", doc(source)]
    if isinstance(source, griffe.Function):
        parts.insert(1, signature(source))
    return "\n\n".join(parts)


def describe_class(found: type) -> str:
    name = found.__name__
    own = source_class(found)
    parts = [f"### `{name}`"]
    if isinstance(made := own.members.get("__init__"), griffe.Function):
        parts.append(signature(made, name))
    parts.append(doc(own))
    members = dict(members_of(found))
    if name in ELSEWHERE:
        parts.append(ELSEWHERE[name])
    elif name == "SamplingParams":
        parts.append(parameters())
    else:
        parts.append(table(m for m in members.values() if isinstance(m, griffe.Attribute)))
    for method in members.values():
        if isinstance(method, griffe.Function):
            parts += [f"#### `{name}.{method.name}`", signature(method), doc(method)]
    return "\n\n".join(filter(None, parts))


def members_of(found: type) -> Iterator[tuple[str, Any]]:
    """The public members of a class and of its bases in tokenmill. The bases go first, and describe
    what they declare: their subclasses only implement it."""
    seen: set[str] = set()
    for base in reversed(found.__mro__):
        if base.__module__.startswith("tokenmill"):
            for name, member in source_class(base).members.items():
                if not name.startswith("_") and name not in seen and name in vars(base):
                    seen.add(name)
                    yield name, member


def table(members: Iterable[griffe.Attribute]) -> str:
    """Fields and properties, or the members of an enumeration."""
    rows = [
        f"| `{one.name}` | {code(one.annotation)} | {code(default_of(one))} | {cell(doc(one))} |"
        for one in members
    ]
    return "\n".join(
        ("| name | type | default | meaning |", "|---|---|---|---|", *rows) if rows else ""
    )


def parameters() -> str:
    """The parameters of sampling, as they are declared, and then those that have a docstring."""
    rows = [
        f"| `{name}` | {cell(described(name))} | {code(repr(one.default))} | "
        f"{cell(meaning_of(name))} | {', '.join(one.metadata['places'])} |"
        for name, one in SAMPLED.items()
    ]
    head = ("| name | value | default | meaning | also in |", "|---|---|---|---|---|")
    others = [
        member
        for name, member in members_of(SamplingParams)
        if isinstance(member, griffe.Attribute) and name not in SAMPLED
    ]
    places = f"Places: {'; '.join(f'{name}: {text}' for name, text in PLACES.items())}."
    return "\n".join((*head, *rows)) + f"\n\n{places}\n\n" + table(others)


def default_of(member: griffe.Attribute) -> object:
    return "" if "property" in member.labels else member.value


def code(value: object) -> str:
    return f"`{cell(str(value))}`" if value is not None and str(value) else ""


def signature(function: griffe.Function, name: str = "") -> str:
    """A function in Python, with one argument per line if one line is too short."""
    text = function.signature(name=name or function.name)
    text = text.removesuffix(" -> None") if name else text
    is_awaited = "async" in function.labels and "-> AsyncGenerator" not in text
    text = f"async {text}" if is_awaited else text
    if len(text) > WIDTH:
        start, end = text.index("(") + 1, text.rindex(")")
        arguments = (f"    {one},\n" for one in split(text[start:end]))
        text = f"{text[:start]}\n{''.join(arguments)}{text[end:]}"
    return f"```python\n{text}\n```"


def split(arguments: str) -> Iterator[str]:
    """The arguments of a signature: commas inside of brackets do not separate them."""
    depth, begin = 0, 0
    for place, letter in enumerate(f"{arguments},"):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            yield arguments[begin:place].strip()
            begin = place + 1


def doc(source: griffe.Object) -> str:
    """The docstring. A public name without one is an error."""
    assert source.docstring is not None, f"{source.path} has no docstring"
    return source.docstring.value


def source_class(found: type) -> griffe.Class:
    """A class as its source has it: it knows the docstrings of fields."""
    source = source_of(found.__module__)[found.__name__]
    assert isinstance(source, griffe.Class)
    return source


@functools.cache
def source_of(module: str) -> griffe.Module:
    """A module, read and not imported."""
    path = Path(tokenmill.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return griffe.visit(module, filepath=path, code=path.read_text(encoding="utf-8"))


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
