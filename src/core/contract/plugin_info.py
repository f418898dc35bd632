"""Descriptions of plugins and their providers, for listings. Only enabled plugins are imported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from ..kinds import Tier

PluginState = Literal["enabled", "available", "failed", "disabled"]


def normalize(name: str) -> str:
    """Spell a name with hyphens. Wherever a name is given, `_` and `-` are equal."""
    return name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of a provider or hook: a plugin, and the distribution that installed it."""

    plugin: str
    distribution: str = "-"
    """"-" for an object that the embedding program passed in."""
    version: str = "-"

    def __str__(self) -> str:
        if self.distribution == "-":
            return f"plugin {self.plugin!r}"
        return f"plugin {self.plugin!r} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One plugin, as `tokenmill plugins list` and the engine's health show it."""

    name: str
    distribution: str
    """The package that installed the plugin; "-" for objects that the program passed in."""
    version: str
    state: PluginState
    """available: installed, but not enabled. disabled: the settings disable it. failed: refused at
    start, or taken out of a hook since then."""
    provides: tuple[str, ...] = ()
    """Providers that it registered, for example "scheduler:chunked"; known once it is imported."""
    chosen: tuple[str, ...] = ()
    """The entries of `provides` that this engine uses."""
    hooks: tuple[str, ...] = ()
    """Hooks that it implements, in the order of the specs."""
    error: str | None = None
    traceback: str = ""
    """The traceback of the exception that made the plugin fail to load, its own frames first."""
    failures: int = 0
    """Number of failures of its hooks since the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionInfo:
    """One option of a provider, as plugins.toml may set it."""

    name: str
    type: str
    default: str
    """As written in Python; "required" when there is no default."""
    help: str = ""
    configured: str = ""
    """The value that plugins.toml sets, as written in Python. Empty: the default is in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderInfo:
    """One provider: what a plugin offers under a name."""

    kind: str
    tier: Tier
    name: str
    aliases: tuple[str, ...]
    doc: str
    options: tuple[OptionInfo, ...]
    on_this_machine: tuple[str, ...] = ()
    """The things that a backend finds or misses on this machine, for any model. Empty for
    other kinds, and for backends that do not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDescription:
    """A plugin with its providers and their options, as `tokenmill plugins show` prints it."""

    info: PluginInfo
    doc: str
    providers: tuple[ProviderInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HookStats:
    """Totals of one hook of one plugin since the start."""

    plugin: str
    hook: str
    """The hook, or for a provider that is called directly the slot: "scheduling_policy"."""
    calls: int = 0
    seconds: float = 0.0
    """Time spent in the plugin. For `schedule` it includes the engine's methods that it calls."""
    failures: int = 0
    slow: int = 0
    """Calls that took more than 50 ms."""

    def __add__(self, other: HookStats) -> HookStats:
        """Add the totals of another implementation of the same hook in the same plugin."""
        return replace(
            self,
            calls=self.calls + other.calls,
            seconds=self.seconds + other.seconds,
            failures=self.failures + other.failures,
            slow=self.slow + other.slow,
        )


def add_stats(*parts: Iterable[HookStats]) -> tuple[HookStats, ...]:
    """Totals per plugin and hook."""
    found: dict[tuple[str, str], HookStats] = {}
    for stats in chain(*parts):
        key = stats.plugin, stats.hook
        found[key] = found[key] + stats if key in found else stats
    return tuple(found.values())
