"""What the engine knows of a plugin, without importing it unless it is enabled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

PluginState = Literal["enabled", "available", "failed", "disabled"]


def normalize(name: str) -> str:
    """The spelling of a name with hyphens; `_` and `-` are equal wherever a name is given."""
    return name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where something came from: a plugin, and the distribution that installed it."""

    plugin: str
    distribution: str = "-"
    """"-" for an object that the embedding program handed over."""
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
    """The package that brought it; "-" for objects that the program handed over."""
    version: str
    state: PluginState
    """available: installed, not enabled. failed: refused at start, or taken out since."""
    provides: tuple[str, ...] = ()
    """What it registered, for example "scheduler:chunked"; known once it is imported."""
    chosen: tuple[str, ...] = ()
    """Those of `provides` that this engine uses."""
    hooks: tuple[str, ...] = ()
    """Hooks that it implements, in the order of the specs."""
    error: str | None = None
    failures: int = 0
    """Times that one of its hooks failed since the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionInfo:
    """One option of a provider, to be set in plugins.toml."""

    name: str
    type: str
    default: str
    """As written in TOML or Python; "required" when there is none."""
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderInfo:
    """One thing that a plugin offers under a name."""

    kind: str
    name: str
    aliases: tuple[str, ...]
    doc: str
    options: tuple[OptionInfo, ...]
    on_this_machine: tuple[str, ...] = ()
    """What it finds here and what it misses, whatever the model; of attention backends that say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginDescription:
    """All about one plugin, as `tokenmill plugins show` prints it."""

    info: PluginInfo
    doc: str
    providers: tuple[ProviderInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HookStats:
    """Totals of one hook of one plugin since the start."""

    plugin: str
    hook: str
    """Or the slot, for a provider that is called directly: "scheduling_policy"."""
    calls: int = 0
    seconds: float = 0.0
    """Spent in the plugin, and for `schedule` also in the engine's methods that it calls."""
    failures: int = 0
    slow: int = 0
    """Calls of more than 50 ms."""

    def __add__(self, other: HookStats) -> HookStats:
        """The totals of two implementations of one hook in one plugin."""
        return replace(
            self,
            calls=self.calls + other.calls,
            seconds=self.seconds + other.seconds,
            failures=self.failures + other.failures,
            slow=self.slow + other.slow,
        )
