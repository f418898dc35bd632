"""Reads the file of --config: YAML or TOML, without duplicate keys and without code."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError

Value = str | list[Any] | dict[str, Any]
"""A scalar as its text, so that a flag parses it as on the command line; a list of values; or an
object with the types of JSON."""
_MAX_BYTES = 1 << 20
_YAML, _TOML = (".yaml", ".yml", ".json"), (".toml",)


def read_config_file(file: Path) -> dict[str, Value]:
    """The keys of a file with their values. Raises ConfigError."""
    if file.suffix not in (*_YAML, *_TOML):
        raise ConfigError(f"--config {file} is neither .yaml nor .toml")
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--config {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {file} is not UTF-8: see byte {error.start}") from error
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"--config {file} has more than {_MAX_BYTES} bytes")
    try:
        return _read_toml(text) if file.suffix in _TOML else _read_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--config {file}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"--config {file} is nested too deeply") from error


def _read_toml(text: str) -> dict[str, Value]:
    return {key: _toml_value(value) for key, value in tomllib.loads(text).items()}


def _toml_value(value: Any) -> Value:
    if isinstance(value, list):
        return [_toml_value(item) for item in value]
    if isinstance(value, dict):
        return _checked(value)
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _read_yaml(text: str) -> dict[str, Value]:
    """Raises ValueError, with the line of the error."""
    try:
        import yaml
    except ImportError as error:
        raise ValueError("YAML needs the package pyyaml: install it, or write TOML") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise ValueError("it must be a mapping, such as `max-model-len: 8192`")
        _refuse_duplicates(node)
        return {key.value: _yaml_value(key.value, value) for key, value in node.value}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{where}{getattr(error, 'problem', None) or error}") from error


def _yaml_value(key: str, node: Any) -> Value:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind == "null":
            raise ValueError(f"{key!r} has no value: give one, or remove the key")
        if ":" in kind or kind.startswith("!"):
            raise ValueError(f"{key!r} has the tag {node.tag}, which is not supported")
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        if any(item.id != "scalar" for item in node.value):
            raise ValueError(
                f"{key!r} is a list, which may hold only texts, numbers, true or false"
            )
        return [_yaml_value(key, item) for item in node.value]
    found: dict[str, Any] = yaml.constructor.SafeConstructor().construct_document(node)
    return _checked(found)


def _refuse_duplicates(root: Any) -> None:
    """Raise ValueError for a key that a mapping has twice: PyYAML keeps the last one."""
    seen, left = set(), [root]  # an alias is the same node again
    while left:
        node = left.pop()
        if node in seen or node.id == "scalar":
            continue
        seen.add(node)
        if node.id == "sequence":
            left += node.value
            continue
        names: set[str] = set()
        for key, value in node.value:
            line = f"line {key.start_mark.line + 1}"
            if key.id != "scalar":
                raise ValueError(f"{line}: a key must be a text")
            if key.value in names:
                raise ValueError(f"{line}: {key.value!r:.80} is given twice")
            names.add(key.value)
            left.append(value)


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    """An object that JSON can have. Raises ValueError for dates and the like."""
    try:
        json.dumps(value, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"a value must be a text, a number, true or false: {error}") from error
    return value
