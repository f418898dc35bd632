"""plugins.toml: which plugins are enabled, which provider fills each slot, and its options.

The packaged file is the documented default. A user's file contains only differences: its `enable`
and `disable` lists are added, and its choices and options replace those of the packaged file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..contract.hookspecs import HOOK_API
from ..contract.plugin_info import normalize
from ..contract.provider_options import FOUND
from ..errors import ConfigError
from ..kinds import KINDS, SLOTS
from ..settings.declaration import flag
from ..wording.suggest import near_and_known

FILE_NAME = "plugins.toml"
_NAMED = tuple(name for name, kind in KINDS.items() if kind.choose in ("all", "request"))
"""Kinds with a table for each provider, [observer.NAME]; slots have one table each."""
_TABLES = ("plugins", *SLOTS, *_NAMED)
_PLUGINS_KEYS = ("enable", "disable", "strict")

Table = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSetting:
    """The table of a slot: the name of the provider that fills it, and its options."""

    use: str | None
    options: Table
    origin: str
    """The file and the table, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSetting:
    """Options of one provider of a kind that is no slot."""

    options: Table
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """The settings of one plugins.toml, or of several that were merged."""

    origin: str
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    strict: bool | None = None
    slots: Mapping[str, SlotSetting] = field(default_factory=dict)
    named: Mapping[tuple[str, str], NamedSetting] = field(default_factory=dict)
    """By kind and name."""
    builtin: tuple[str, ...] = ()
    """Plugins that the packaged file enables. They must be installed."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """The flags that enable plugins which no file enables, by plugin."""

    @property
    def enabled(self) -> tuple[str, ...]:
        """Plugins to load, in order."""
        return tuple(name for name in self.enable if name not in self.disable)


def read_settings(plugins_file: str | None = None) -> PluginSettings:
    """Read the packaged settings and merge the user's file into them.

    The user's file is `plugins_file`; if that is None, ./plugins.toml if it exists. Its `origin` is
    FOUND then, and only then. Raises ConfigError that names the file, the table and the key.
    """
    packaged = _packaged()
    if plugins_file is not None:
        path = Path(plugins_file)
        named = path.absolute() if str(path) == FOUND else path
        return _merge(packaged, read_plugins_file(named))
    own = Path(FOUND)
    return _merge(packaged, read_plugins_file(own)) if os.path.lexists(own) else packaged


def settings_of(config: EngineConfig) -> PluginSettings:
    """The settings of an engine's plugins file, and the plugins that its flags enable."""
    settings = read_settings(config.plugins_file)
    kinds = [kind for kind in KINDS.values() if kind.choose == "all" and kind.flag is not None]
    named = {normalize(n): flag(kind.name) for kind in kinds for n in config.named(kind.name)}
    new = {name: given for name, given in named.items() if name not in settings.enable}
    return replace(settings, enable=(*settings.enable, *new), flags=new)


@cache
def _packaged() -> PluginSettings:
    packaged = read_plugins_file(packaged_file())
    return replace(packaged, builtin=packaged.enable)


def packaged_file() -> Path:
    """The default plugins.toml: inside the installed package, or next to src/ in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / FILE_NAME
    return inside if inside.is_file() else package.parent / FILE_NAME


def read_plugins_file(path: Path) -> PluginSettings:
    """Read one file and check it as far as possible without loading plugins. Raises ConfigError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the plugins file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return _parse(content, str(path))


def _parse(content: dict[str, Any], origin: str) -> PluginSettings:
    api = content.pop("api", HOOK_API)
    if api != HOOK_API:
        raise ConfigError(f"{origin}: api = {api!r}, but this engine supports api = {HOOK_API}")
    for name, table in content.items():
        if normalize(name) not in map(normalize, _TABLES):
            raise ConfigError(f"{origin}: unknown table [{name}]{near_and_known(name, _TABLES)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {name} must be a table, got {table!r}")
    tables = {name.replace("-", "_"): table for name, table in content.items()}
    plugins = tables.get("plugins", {})
    _check_plugins(plugins, origin)
    return PluginSettings(
        origin=origin,
        enable=tuple(map(normalize, plugins.get("enable", ()))),
        disable=tuple(map(normalize, plugins.get("disable", ()))),
        strict=plugins.get("strict"),
        slots={
            slot: _parse_slot(tables[slot], f"{origin} [{slot}]")
            for slot in SLOTS
            if slot in tables
        },
        named=_parse_named(tables, origin),
    )


def _check_plugins(table: Table, origin: str) -> None:
    for key, value in table.items():
        if key not in _PLUGINS_KEYS:
            raise ConfigError(
                f"{origin} [plugins]: unknown key {key!r}{near_and_known(key, _PLUGINS_KEYS)}"
            )
        if key == "strict":
            if not isinstance(value, bool):
                raise ConfigError(f"{origin} [plugins] strict must be true or false, got {value!r}")
        elif not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise ConfigError(f"{origin} [plugins] {key} must be a list of names, got {value!r}")


def _parse_slot(table: dict[str, object], origin: str) -> SlotSetting:
    use = table.pop("use", None)
    if use is not None and not isinstance(use, str):
        raise ConfigError(f"{origin} use must be a name, got {use!r}")
    return SlotSetting(use=use, options=table, origin=origin)


def _parse_named(tables: Mapping[str, Table], origin: str) -> dict[tuple[str, str], NamedSetting]:
    named = {}
    for kind in _NAMED:
        for name, options in tables.get(kind, {}).items():
            where = f"{origin} [{kind}.{name}]"
            if not isinstance(options, dict):
                raise ConfigError(f"{where} must be a table of options, got {options!r}")
            named[kind, normalize(name)] = NamedSetting(options=options, origin=where)
    return named


def _merge(base: PluginSettings, user: PluginSettings) -> PluginSettings:
    both = [name for name in user.enable if name in user.disable]
    if both:
        raise ConfigError(f"{user.origin} [plugins] enables and disables {both[0]!r}")
    return replace(
        base,
        origin=user.origin,
        enable=tuple(dict.fromkeys((*base.enable, *user.enable))),
        disable=user.disable,
        strict=base.strict if user.strict is None else user.strict,
        slots={
            **base.slots,
            **{k: _merge_slot(base.slots.get(k), s) for k, s in user.slots.items()},
        },
        named={
            **base.named,
            **{k: _merge_named(base.named.get(k), s) for k, s in user.named.items()},
        },
    )


def _merge_slot(base: SlotSetting | None, user: SlotSetting) -> SlotSetting:
    """Merge the tables of a slot. If `use` differs, the base's options do not apply."""
    if (
        base is None
        or base.use is None
        or (user.use and normalize(user.use) != normalize(base.use))
    ):
        return user
    return SlotSetting(use=base.use, options={**base.options, **user.options}, origin=user.origin)


def _merge_named(base: NamedSetting | None, user: NamedSetting) -> NamedSetting:
    options = {**(base.options if base else {}), **user.options}
    return NamedSetting(options=options, origin=user.origin)
