"""Sets of options that a sweep tries, in the format of `vllm bench sweep`."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError

NAME = "_benchmark_name"
"""The key with the name of a set, which is no option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Options of one command line."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Values by option without dashes, as in JSON; with NAME if the set has a name."""

    @property
    def name(self) -> str:
        """The set's name, or else its options; empty without options."""
        if NAME in self.fields:
            return str(self.fields[NAME])
        return "-".join(f"{key}={value}" for key, value in self.fields.items())

    def get(self, key: str) -> Any:
        """The value of an option, whose name may be written with dashes or underscores.

        Raises KeyError.
        """
        return {_flag(known): value for known, value in self.fields.items()}[_flag(key)]

    def only(self, known: Container[str]) -> Parameters:
        """The set without the options that are not known, by name without dashes before it."""
        fields = self.fields.items()
        return Parameters(
            fields={key: value for key, value in fields if key == NAME or _first(key) in known}
        )

    def apply(self, command: Sequence[str]) -> list[str]:
        """The command with these options in place of its own."""
        words = list(command)
        for key, value in self.fields.items():
            if key != NAME:
                words = [*_without(words, key, value), *_option(key, value)]
        return words


def read_parameters(given: str | None, option: str) -> list[Parameters]:
    """Read a JSON file, or JSON itself: a list of objects, or an object of named ones.

    None: one set without options. Raises ConfigError for anything else, naming `option`.
    """
    if given is None:
        return [Parameters()]
    try:
        text = given if given[:1] in "[{" else Path(given).read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{option}: cannot read {given}: {error}") from error
    if isinstance(found, dict) and all(isinstance(one, dict) for one in found.values()):
        found = [{NAME: name, **fields} for name, fields in found.items()]
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found) or not found:
        raise ConfigError(f"{option} must be a list of objects, or an object of objects")
    sets = [Parameters(fields=fields) for fields in found]
    names = [one.name for one in sets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{option} has {twice[0]!r} twice")
    return sets


def pairs(
    servers: Sequence[Parameters], loads: Sequence[Parameters], links: Mapping[str, str]
) -> list[tuple[Parameters, Parameters]]:
    """All combinations. With `links` only those in which an option of the server has the value of
    an option of the load. Raises ConfigError if there are none."""
    found = [
        (server, load)
        for server in servers
        for load in loads
        if all(_is_linked(server, load, *link) for link in links.items())
    ]
    if not found:
        text = ",".join(f"{server}={load}" for server, load in links.items())
        raise ConfigError(
            f"--link-vars {text}: no combination has equal values; --serve-params have "
            f"{_names(servers)}, --bench-params have {_names(loads)}"
        )
    return found


def _names(sets: Sequence[Parameters]) -> str:
    names = dict.fromkeys(name for one in sets for name in one.fields if name != NAME)
    return " and ".join(names) or "no options"


def read_links(text: str) -> dict[str, str]:
    """Read --link-vars: "max_num_seqs=max_concurrency,...". Raises ConfigError."""
    links = {}
    for part in filter(None, text.split(",")):
        server, separator, load = part.partition("=")
        if not separator:
            raise ConfigError(f"--link-vars must be SERVER=BENCH,..., got {part!r}")
        links[server.strip()] = load.strip()
    return links


def _is_linked(server: Parameters, load: Parameters, key: str, other: str) -> bool:
    try:
        return bool(server.get(key) == load.get(other))
    except KeyError:
        return False


def _flag(key: str) -> str:
    """The name of an option on the command line. Names inside of an object keep underscores."""
    _, dot, rest = key.partition(".")
    return _first(key) + dot + rest


def _first(key: str) -> str:
    """The option of a key that may name a part of its object."""
    return key.partition(".")[0].replace("_", "-")


def _option(key: str, value: Any) -> list[str]:
    flag = f"--{_flag(key)}"
    if isinstance(value, bool):
        if "." in key:
            return [f"{flag}={'true' if value else 'false'}"]
        return [flag if value else f"--no-{_flag(key)}"]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]


def _without(words: Sequence[str], key: str, value: Any) -> list[str]:
    """The words without an option and its values: one, none of a switch, any number of a list."""
    names = {f"--{prefix}{name}" for prefix in ("", "no-") for name in (key, _flag(key))}
    num_values = len(words) if isinstance(value, list) else 0 if isinstance(value, bool) else 1
    kept, left = list[str](), 0
    for word in words:
        flag, has_value, _ = word.partition("=")
        if flag in names:
            left = 0 if has_value else num_values
        elif left and not word.startswith("--"):
            left -= 1
        else:
            kept.append(word)
            left = 0
    return kept
