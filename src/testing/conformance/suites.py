"""Makes the pytest class of a suite from the check functions of its module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import Parameter, signature
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def suite(cls: type[T]) -> type[T]:
    """Add a test_... to a class for each check_... above it in its module.

    Arguments of a check are fixtures. The first one is the provider under test, which subclasses
    return. An argument with a default value gets a fixture that returns it, if the class has none.
    `report` is the list of the test's properties.
    """
    for check in checks_of(sys.modules[cls.__module__]):
        name = check.__name__.replace("check_", "test_", 1)
        setattr(cls, name, staticmethod(_without_defaults(check)))
        for argument in signature(check).parameters.values():
            if argument.default is not Parameter.empty and not hasattr(cls, argument.name):
                setattr(cls, argument.name, _returning(argument.name, argument.default))
            if argument.name == "report":
                setattr(cls, argument.name, _report)
    return cls


def checks_of(module: ModuleType) -> Iterator[FunctionType]:
    """The checks of a suite's module, in their order. Imported functions are not among them."""
    for name, found in vars(module).items():
        if name.startswith("check_") and getattr(found, "__module__", "") == module.__name__:
            found.__name__ = name  # a function that another one made has no name of its own
            yield found


def _without_defaults(check: FunctionType) -> FunctionType:
    """A copy of a function. pytest gives no fixture to an argument with a default value."""
    copy = FunctionType(
        check.__code__, check.__globals__, check.__name__, closure=check.__closure__
    )
    copy.__doc__ = check.__doc__
    copy.__dict__.update(check.__dict__)  # with pytest's marks
    return copy


def _returning(name: str, value: object) -> Any:
    @pytest.fixture(name=name)
    def default(self: object) -> object:
        return value

    return default


@pytest.fixture(name="report")
def _report(self: object, request: pytest.FixtureRequest) -> list[tuple[str, object]]:
    properties: list[tuple[str, object]] = request.node.user_properties
    return properties
