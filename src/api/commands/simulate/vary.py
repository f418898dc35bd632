"""Parses `--vary KEY=A,B,C`: engine settings that are compared in all combinations."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.settings.declaration import flag
from ....core.wording.suggest import did_you_mean
from ..flags.engine import parse_size

Settings = dict[str, Any]


def vary(
    texts: Sequence[str],
    given: Mapping[str, Any],
    *,
    leave_out: Sequence[str] = (),
    option: str = "--vary",
) -> list[Settings]:
    """Every combination of the values, as options of EngineConfig. The last key changes fastest.

    `given`: options that flags have set. `leave_out`: fields that have no effect in this command.
    `option`: the flag that has the texts.
    Raises ConfigError for a key that is unknown, given twice or has no values.
    """
    known = [f.name for f in dataclasses.fields(EngineConfig) if f.name not in leave_out]
    varied: dict[str, list[Any]] = {}
    for text in texts:
        try:
            key, values = _split(text, known)
            if key in varied:
                raise ConfigError(f"{key} is varied twice")
            if key in given:
                raise ConfigError(f"{flag(key)} is also given; leave out one of them")
            varied[key] = [_parse(key, value) for value in values]
        except ConfigError as error:
            raise ConfigError(f"{option} {text}: {error}") from error
    return [
        dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())
    ]


def _split(text: str, known: Sequence[str]) -> tuple[str, list[str]]:
    key, _, values = text.partition("=")
    name = key.strip().removeprefix("--").replace("-", "_")
    if name not in known:
        raise ConfigError(
            f"{name!r} is not a setting of the engine that can be varied"
            f"{did_you_mean(name, known) or '. Known: ' + ', '.join(known)}"
        )
    found = [value.strip() for value in values.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise ConfigError(f"expected {name}=A,B,C with values that differ")
    return name, found


def _parse(key: str, value: str) -> Any:
    """A value in its field's type; "none" leaves the choice to the engine."""
    try:
        if key == "kv_cache_memory":
            return parse_size(value)
        hint = typing.get_type_hints(EngineConfig)[key]
        return msgspec.convert(_WORDS.get(value.lower(), value), hint, strict=False)
    except (msgspec.ValidationError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"{value!r} is not a value for {key}: {error}") from error


_WORDS: Mapping[str, Any] = {"on": True, "off": False, "none": None}
