"""Optional packages: found without being imported, imported without trust.

A package that is missing or broken is a reason against the backend that needs it, never a crash.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType


class PackageError(Exception):
    """Why a package cannot be used, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A module that another distribution brings."""

    module: str
    """The submodule that is used: several distributions may share the package above it."""
    install: str
    """How to get it, in a few words."""

    def reason_if_missing(self) -> str | None:
        """Why it is not there; nothing is imported."""
        if self.module in sys.modules or _find(self.module) is not None:
            return None
        return f"{self.module} is not installed ({self.install})"

    def load(self) -> ModuleType:
        """The module. Raises PackageError that says what is wrong with it."""
        missing = self.reason_if_missing()
        if missing is not None:
            raise PackageError(missing)
        try:
            return importlib.import_module(self.module)
        except Exception as error:  # a package may fail in any way when it is imported
            raise PackageError(f"{self.module} cannot be imported: {describe(error)}") from error

    def reason(self) -> str | None:
        """Why it cannot be used; it is imported to find out."""
        try:
            self.load()
        except PackageError as error:
            return str(error)
        return None


def describe(error: Exception) -> str:
    """Type and first line of an error."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _find(name: str) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, which imports the packages above; this does not."""
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
