"""Deliberately wrong plugins: each must fail the one check of its suite that `fails` names.

Policies get read-only views. Some of these break in through the private `_step` and `_request`, to
show that the suite finds such damage, too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, TypeVar

Given = TypeVar("Given", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A wrong plugin, and the check that finds it."""

    name: str
    check: FunctionType
    make: Callable[[], object]
    """Makes the check's first argument."""
    raises: type[Exception]
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of the check."""

    def __str__(self) -> str:
        return self.name


WRONG: list[Wrong] = []


def load_all() -> list[Wrong]:
    """The wrong plugins of all modules of this package."""
    for found in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(found.name)
    return WRONG


def fails(
    check: Any, *, raises: type[Exception] = AssertionError, **arguments: object
) -> Callable[[Given], Given]:
    """Mark a class that is a wrong plugin, or a function that makes one, with the check that finds
    it. An exception in `raises` that is no AssertionError is the plugin's own."""

    def add(given: Given) -> Given:
        make = (lambda: given) if isinstance(given, type) else given
        name = f"{given.__module__.rpartition('.')[2]}.{given.__name__}"
        WRONG.append(Wrong(name=name, check=check, make=make, raises=raises, arguments=arguments))
        return given

    return add
