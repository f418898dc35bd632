"""What the engine knows of a plugin, without importing it unless it is enabled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class HookStats:
    """Totals of one hook since the start."""

    calls: int = 0
    seconds: float = 0.0
    """Spent in its implementations, and for `schedule` in what they call on the step."""
    failures: int = 0
    slow: Counter[str] = field(default_factory=Counter)
    """Calls of more than 50 ms, by plugin."""
