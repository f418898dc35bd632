"""`--config FILE`: flags of a command from a YAML or TOML file, with vLLM's keys."""

from __future__ import annotations

import argparse
import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.settings.refused import refusal
from ....core.wording.suggest import did_you_mean
from .config_reading import Value, read_config_file
from .groups import flag_group

_SETTING = (argparse._StoreAction, argparse._StoreTrueAction, argparse.BooleanOptionalAction)
_REPEATED = argparse._AppendAction
_OBJECTS = {
    name
    for name, hint in typing.get_type_hints(EngineConfig).items()
    if any(typing.get_origin(kind) is Mapping for kind in typing.get_args(hint))
}
"""Settings that take a JSON object."""
_KINDS = {"int": "whole number", "float": "number"}
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add --config. After parsing, `config_keys` are the settings that came from the file."""
    flag_group(parser, "configuration").add_argument(
        "--config",
        type=Path,
        metavar="PATH",
        help="YAML or TOML file with flags of this command, such as `max-model-len: 8192`; also "
        "`model`. Flags on the command line win",
    )
    parser.set_defaults(config_keys=frozenset())


def namespace_of_file(
    parser: argparse.ArgumentParser, words: Sequence[str] | None, namespace: Any
) -> Any:
    """The namespace to parse `words` into: with the values of the file that --config names.

    A flag in `words` replaces the file's value, even where a flag may be repeated. Exits with
    status 2, as for a wrong flag, if the file cannot be read or a key or value is wrong.
    """
    if words is None or "--config" not in parser._option_string_actions:
        return namespace
    file, given = _given(parser, words)
    if file is None:
        return namespace
    try:
        values = _values(parser, file, given)
    except ConfigError as error:
        parser.error(str(error))
    found = namespace or argparse.Namespace()
    vars(found).update(values, config_keys=frozenset(values))
    return found


def _given(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[Path | None, set[str]]:
    """The file that the words name, and the settings that they set."""
    unset: list[object] = []  # a list, because repeated flags append to a copy of it
    blank = argparse.Namespace(**{action.dest: unset for action in parser._actions})
    found, _ = argparse.ArgumentParser.parse_known_args(parser, words, blank)
    given = {name for name, value in vars(found).items() if value is not unset}
    if getattr(found, "model_argument", None) is not None:
        given.add("model")
    return (found.config if "config" in given else None), given


def _values(parser: argparse.ArgumentParser, file: Path, given: set[str]) -> dict[str, Any]:
    """The file's values by setting, without those that are given. Raises ConfigError."""
    actions = {
        name: action
        for name, action in parser._option_string_actions.items()
        if isinstance(action, (*_SETTING, _REPEATED)) and action.dest != "config"
    }
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in read_config_file(file).items():
        name = "--" + key.replace("_", "-")
        action = actions.get(name)
        if action is None:
            known = [name.lstrip("-") for name in actions]
            near = refusal(name) or did_you_mean(name.lstrip("-"), known)
            raise ConfigError(f"{file} has the unknown key {key!r}{near}")
        if action.dest in keys:
            raise ConfigError(f"{file} sets {key!r} twice: {keys[action.dest]!r} is the same")
        keys[action.dest] = key
        try:
            values[action.dest] = _convert(action, name, value)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise ConfigError(f"{key!r} in {file}: {error}") from error
    return {setting: value for setting, value in values.items() if setting not in given}


def _convert(action: argparse.Action, name: str, value: Value) -> Any:
    """The value as the flag would set it. Raises ValueError or ArgumentTypeError."""
    if action.nargs == 0:
        return _switch(action, name, value)
    if isinstance(action, _REPEATED) or action.nargs == "+":
        texts = value if isinstance(value, list) else [value]
        return [_one(action, text) for text in texts]
    return _one(action, value)


def _switch(action: argparse.Action, name: str, value: Value) -> bool:
    on = _SWITCH.get(value.lower()) if isinstance(value, str) else None
    if on is None:
        raise ValueError(f"it is a switch, true or false, got {value!r:.80}")
    is_negative = isinstance(action, argparse.BooleanOptionalAction) and name.startswith("--no-")
    return on is not is_negative


def _one(action: argparse.Action, value: Value) -> Any:
    if isinstance(value, dict) and action.dest in _OBJECTS:
        return json.dumps(value)
    if not isinstance(value, str):
        kind = "a list" if isinstance(value, list) else "a mapping"
        raise ValueError(f"it takes one value, not {kind}")
    convert: Any = action.type or str
    try:
        found = convert(value)
    except ValueError:
        kind = getattr(convert, "__name__", "value")
        raise ValueError(f"it must be a {_KINDS.get(kind, kind)}, got {value!r:.80}") from None
    if action.choices is not None and found not in action.choices:
        known = [str(choice) for choice in action.choices]
        raise ValueError(
            f"it must be one of {', '.join(known)}, got {value!r:.80}{did_you_mean(value, known)}"
        )
    return found
