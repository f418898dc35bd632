"""Settings of speculation, from --speculative-config (JSON) and from single flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import ConfigError

DEFAULT_NUM_SPECULATIVE_TOKENS = 5
MAX_NUM_SPECULATIVE_TOKENS = 16
_EXAMPLE = '\'{"method": "ngram", "num_speculative_tokens": 5}\''
_FLAGS = {
    "method": "--speculative-method",
    "model": "--speculative-model",
    "num_speculative_tokens": "--num-speculative-tokens",
}
OPTION_FLAGS = ("--speculative-model", "--speculative-config")
"""Flags that may set options of the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationSettings:
    """The settings of flags and JSON together. plugins.toml decides what they leave open."""

    method: str | None
    """Name of the provider; None: plugins.toml decides."""
    num_speculative_tokens: int
    options: Mapping[str, object]
    """Options of the provider: `model`, and every JSON key that is not a setting of the engine."""
    given: tuple[str, ...]
    """Names of the flags that were given, for messages."""


def read_speculation(
    *,
    method: str | None,
    model: str | None,
    num_speculative_tokens: int | None,
    config: str | Mapping[str, object] | None,
) -> SpeculationSettings:
    """Combine the flags with `config`, which is JSON text or a mapping.

    Raises ConfigError for invalid JSON, a wrong type, a value out of range, or a setting that is
    given twice.
    """
    flags = {"method": method, "model": model, "num_speculative_tokens": num_speculative_tokens}
    said = _read_json(config) if isinstance(config, str) else dict(config or {})
    values: dict[str, Any] = {name: _once(name, flags[name], said) for name in flags}
    _check(values, said)
    options = said if values["model"] is None else {**said, "model": values["model"]}
    number = values["num_speculative_tokens"]
    return SpeculationSettings(
        method=values["method"],
        num_speculative_tokens=DEFAULT_NUM_SPECULATIVE_TOKENS if number is None else number,
        options=options,
        given=tuple(
            [_FLAGS[name] for name, value in flags.items() if value is not None]
            + ["--speculative-config"] * (config is not None)
        ),
    )


def _read_json(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--speculative-config must be a JSON object, as in {_EXAMPLE}: {error}, got {text!r}"
        ) from error


def _once(name: str, flagged: object, said: dict[str, object]) -> object:
    """The value of a flag, or of the JSON key of that name. The key is removed from `said`."""
    value = said.pop(name, None)
    if value is not None and flagged is not None:
        raise ConfigError(
            f"{_FLAGS[name]} is {flagged!r} and --speculative-config has {name!r}: {value!r}; "
            "give only one of them"
        )
    return flagged if value is None else value


def _check(values: Mapping[str, object], said: Mapping[str, object]) -> None:
    for name in ("method", "model"):
        if values[name] is not None and (not isinstance(values[name], str) or not values[name]):
            raise ConfigError(f"{_FLAGS[name]} must be a text, got {values[name]!r}")
    if values["model"] == "[ngram]":
        raise ConfigError("give --speculative-method ngram instead of --speculative-model [ngram]")
    number = values["num_speculative_tokens"]
    if number is not None and (
        not isinstance(number, int)
        or isinstance(number, bool)
        or not 1 <= number <= MAX_NUM_SPECULATIVE_TOKENS
    ):
        raise ConfigError(
            f"--num-speculative-tokens must be between 1 and {MAX_NUM_SPECULATIVE_TOKENS}, "
            f"got {number!r}; --speculative-method none switches speculation off"
        )
    for key in said:
        if not isinstance(key, str):
            raise ConfigError(f"keys of --speculative-config must be texts, got {key!r}")
