"""Options of providers: a dataclass declares them, and a table of plugins.toml sets them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from ..errors import CONTAINED, PluginError
from ..wording.suggest import did_you_mean
from .plugin_info import OptionInfo

FOUND = "plugins.toml"
"""Name of the file that is read without being asked for, from the working directory."""
NAMED_ONLY = "named_only"
"""Key of a field's metadata: True for an option that only a file of `--plugins-file` may set. A
file that lies in a directory must not decide, for example, with which machine the engine talks."""


def build_options(cls: type[Any], table: Mapping[str, object], *, where: str, name: str) -> object:
    """Make the options object of provider `name` from its table.

    `where` names the table in messages. Raises PluginError, whose message is one line, for an
    unknown or missing option, a wrong type, a value that the dataclass refuses, and an option with
    NAMED_ONLY in the file FOUND.
    """
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for key in given:
        if key not in known:
            raise PluginError(_unknown(key, known, where, name))
        if known[key].metadata.get(NAMED_ONLY) and where.startswith(f"{FOUND} "):
            raise PluginError(
                f"{where} {key}: a file that was not named must not set it; "
                f"give --plugins-file {FOUND}"
            )
    types = get_type_hints(cls, include_extras=True)
    values = {key: _convert(value, types[key], f"{where} {key}") for key, value in given.items()}
    missing = [key for key, f in known.items() if key not in values and _is_required(f)]
    if missing:
        raise PluginError(f"{where} {name!r} needs the option {', '.join(map(repr, missing))}")
    try:
        built: object = cls(**values)
    except CONTAINED as error:
        raise PluginError(f"{where} {name!r}: {error}") from error
    return built


def refuse_options(table: Mapping[str, object], *, where: str, name: str) -> None:
    """Raise PluginError if the table of a provider without options has any."""
    for key in table:
        raise PluginError(f"{where} {key}: {name!r} takes no options")


def describe_options(cls: type[Any] | None) -> tuple[OptionInfo, ...]:
    """Name, type, default and help of every option. The help is the field's metadata "help"."""
    if cls is None:
        return ()
    types = get_type_hints(cls)
    return tuple(
        OptionInfo(
            name=f.name,
            type=inspect.formatannotation(types[f.name]),
            default=_show_default(f),
            help=f.metadata.get("help", ""),
        )
        for f in dataclasses.fields(cls)
        if f.init
    )


def _unknown(key: str, known: Mapping[str, object], where: str, name: str) -> str:
    if not known:
        return f"{where} {key}: {name!r} takes no options"
    near = did_you_mean(key, known) or "."
    return f"{where} {key}: {name!r} has no such option. It takes: {', '.join(known)}{near}"


def _convert(value: object, hint: Any, where: str) -> object:
    try:
        converted: object = msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise PluginError(
            f"{where}: {error}, got {value!r}".replace("Expected", "expected")
        ) from error
    return converted


def _is_required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _show_default(f: dataclasses.Field[Any]) -> str:
    if f.default_factory is not dataclasses.MISSING:
        return repr(f.default_factory())
    return "required" if f.default is dataclasses.MISSING else repr(f.default)
