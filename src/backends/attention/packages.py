"""Optional packages that attention backends import.

A missing or broken package is a reason against the backend that needs it, never a crash.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol


class PackageError(Exception):
    """Why a package cannot be used, in one line."""


class Source(Protocol):
    """A package, or a library of operators."""

    def reason_if_missing(self) -> str | None: ...

    def load(self) -> Any: ...


def reason_against(source: Source) -> str | None:
    """Load a source; return the reason why that failed, or None."""
    try:
        source.load()
    except PackageError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A module of another distribution."""

    module: str
    """The submodule that is used: several distributions may share its parent package."""
    install: str
    """The way to install it, in a few words."""

    def reason_if_missing(self) -> str | None:
        """Say that the module is not installed, or return None; imports nothing."""
        if self.module in sys.modules or _find(self.module) is not None:
            return None
        return f"{self.module} is not installed ({self.install})"

    def load(self) -> ModuleType:
        """Import the module. Raises PackageError with the reason if that fails."""
        missing = self.reason_if_missing()
        if missing is not None:
            raise PackageError(missing)
        try:
            return importlib.import_module(self.module)
        except Exception as error:  # a package may fail in any way when it is imported
            raise PackageError(f"{self.module} cannot be imported: {describe(error)}") from error


def describe(error: Exception) -> str:
    """Return the type and the first line of an error."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _find(name: str) -> ModuleSpec | None:
    """Find a module like `importlib.util.find_spec`, but without importing its parent packages."""
    top, *below = name.split(".")
    try:
        spec = find_spec(top)
    except ValueError:  # already imported, without a spec
        return None
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec
