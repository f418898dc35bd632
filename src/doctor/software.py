"""Python, torch and the other packages that tokenmill uses."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from .finding import Finding, note, ok, problem, warning

DISTRIBUTION = "tokenmill"
_OLDEST, _NEWEST = (3, 11), (3, 13)
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?(?:.*?>=(?P<least>[\d.]+))?")
_EXTRA = re.compile(r"extra *== *['\"]([\w-]+)['\"]")
_FOR_USERS = ("chat", "completion", "kv-events", "otel", "ray", "transformers", "triton")
"""Extras that bring features. The others are for developers of tokenmill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """A package that tokenmill needs, or that one of its extras brings."""

    name: str
    least: tuple[int, ...]
    extra: str

    def trouble(self) -> str:
        """Why the installed package does not fit; empty if it does."""
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return f"{self.name} is missing"
        if numbers(version) < self.least:
            least = ".".join(map(str, self.least))
            return f"{self.name} {version} is older than {least}"
        return ""


def examine_python() -> Finding:
    """The version of Python."""
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if _OLDEST <= sys.version_info[:2] <= _NEWEST:
        return ok("python", found)
    return warning(
        "python",
        found,
        cost="tokenmill is tested with Python 3.11 to 3.13",
        advice="make the environment with one of these",
    )


def examine_packages() -> Finding:
    """The packages that the engine needs."""
    troubles = [trouble for one in needed_packages("") if (trouble := one.trouble())]
    if not troubles:
        return ok("packages", "all that the engine needs are here")
    return problem(
        "packages",
        "; ".join(troubles),
        cost="a start, or a part of the engine, fails",
        advice=f"pip install --upgrade {DISTRIBUTION}",
    )


def examine_extras() -> Finding:
    """The packages that bring more features."""
    there = [name for name in _FOR_USERS if not any(one.trouble() for one in needed_packages(name))]
    others = [name for name in _FOR_USERS if name not in there]
    found = f"installed: {', '.join(there) or 'none'}"
    if not others:
        return ok("extras", found)
    return note(
        "extras",
        f"{found}; not installed: {', '.join(others)}",
        advice=f"pip install '{DISTRIBUTION}[{others[0]}]' installs one",
    )


def needed_packages(extra: str) -> Iterator[Needed]:
    """The packages that tokenmill's own metadata names for an extra; "" for the engine itself."""
    for line in metadata.requires(DISTRIBUTION) or ():
        requirement, _, marker = line.partition(";")
        named = _EXTRA.search(marker)
        if (named[1] if named else "") != extra:
            continue
        if 'sys_platform == "linux"' in marker.replace("'", '"') and sys.platform != "linux":
            continue
        found = _REQUIREMENT.match(requirement.strip())
        assert found is not None, requirement
        yield Needed(name=found["name"], least=numbers(found["least"] or ""), extra=extra)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu has (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()
