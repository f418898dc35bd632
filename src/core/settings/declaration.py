"""Declares one setting of the engine. Flag, argument, help and documentation follow from it."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any


def setting(default: Any, help: str, *aliases: str, **facts: Any) -> Any:
    """A field of EngineConfig. `aliases`: other flags; the long ones are also argument names.

    `facts`: `between`, the smallest and the largest value; `one_of`, all values; `metavar`, what
    stands for the value in help; `group`, the group of flags that begins with this setting;
    `unused_on_cpu`, why the setting has no effect on CPUs; `for_images`: it has none for models
    of text.
    """
    return field(default=default, metadata={"help": help, "aliases": aliases, **facts})


def flag(name: str) -> str:
    """The command-line spelling of an argument."""
    return "--" + name.replace("_", "-")


def flags(setting: Field[Any]) -> tuple[str, ...]:
    """All flags of a setting."""
    return flag(setting.name), *setting.metadata["aliases"]


def arguments(setting: Field[Any]) -> list[str]:
    """All names of a setting in programs."""
    return [name[2:].replace("-", "_") for name in flags(setting) if name.startswith("--")]
