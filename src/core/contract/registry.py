"""The registry: plugins offer providers by name, and a flag or plugins.toml chooses one.

A registry can list and check offers, suggest similar names and refuse duplicates. A hook that
returns a provider for a name could not. Names are written with hyphens; on input underscores are
equal to hyphens.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from ..config import EngineConfig
from ..errors import CONTAINED, PluginError, describe
from ..kinds import KINDS, Kind, P
from ..wording.suggest import did_you_mean, listed
from .metrics import PluginMetrics
from .plugin_info import ProviderInfo, Source, normalize
from .provider_options import build_options, describe_options, refuse_options
from .start_calls import START_CALLS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The index of this engine among those of a server."""

    index: int = 0
    """From 0; the same as the label `engine` in metrics. It stays when the engine is restarted."""
    count: int = 1
    """Number of engines: --data-parallel-size."""


ONLY_REPLICA = Replica()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """First argument of the factories of observers and admissions."""

    config: EngineConfig
    metrics: PluginMetrics = dataclasses.field(default_factory=PluginMetrics)
    """Makes counters, gauges and histograms that GET /metrics shows."""
    replica: Replica = ONLY_REPLICA
    """This engine among those of the server, for example for a file of its own."""
    is_simulated: bool = False
    """True in a simulation, whose metrics and logs nobody reads. The factory of an observer that
    only reports may return None, so that simulations are faster."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provider:
    """A named factory that a plugin offers."""

    kind: str
    name: str
    aliases: tuple[str, ...]
    switch: bool | None
    """The value of the kind's flag that is on or off, if it selects this provider."""
    factory: Callable[..., object]
    options: type[Any] | None
    source: Source

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def describe(self) -> ProviderInfo:
        """The provider with its options, for listings; its text is the factory's docstring."""
        return ProviderInfo(
            kind=self.kind,
            tier=KINDS[self.kind].tier,
            name=self.name,
            aliases=self.aliases,
            doc=inspect.getdoc(self.factory) or "",
            options=describe_options(self.options),
        )


class Registry:
    """The argument of the `register` hook, which takes a plugin's offers.

    If an offer declares `options` (a dataclass), its factory is called with an instance of that
    class. The factories of observers and admissions get a PluginContext as their first argument.
    Import heavy modules inside the factory.
    """

    def __init__(self) -> None:
        self._source: Source | None = None
        self._providers: dict[tuple[str, str], Provider] = {}

    @contextmanager
    def accepting(self, source: Source) -> Iterator[Self]:
        """Accept offers of this plugin inside a `with` block; elsewhere they are refused.

        If the block raises, all offers of the plugin are withdrawn.
        """
        self._source = source
        try:
            yield self
        except BaseException:
            self.withdraw(source)
            raise
        finally:
            self._source = None

    def offer(
        self,
        kind: Kind[P],
        name: str,
        factory: Callable[..., P],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
        switch: bool | None = None,
    ) -> None:
        """Offer a provider of a kind, under a name by which it is chosen or used.

        `factory` makes the provider. `switch` is for kinds with a flag that is on or off: the value
        of this flag that selects the provider. Raises PluginError for an offer that cannot work.
        """
        if not isinstance(kind, Kind):
            raise PluginError(f"{name!r} needs a kind, such as kinds.SCHEDULER, got {kind!r}")
        what = f"{label(kind.name)} {name!r}"
        if self._source is None:
            raise PluginError(f"{what} came too late: offer it in the hook 'register'")
        if not callable(factory):
            raise PluginError(f"{what} needs a factory to call, got {factory!r}")
        if options is not None and not (
            isinstance(options, type) and dataclasses.is_dataclass(options)
        ):
            raise PluginError(f"options of {what} must be a dataclass, got {options!r}")
        if switch is not None and kind.switch is None:
            raise PluginError(f"a {label(kind.name)} has no switch: offer {name!r} without one")
        names = [normalize(n) for n in (name, *aliases)]
        provider = Provider(
            kind=kind.name,
            name=names[0],
            aliases=tuple(names[1:]),
            switch=switch,
            factory=factory,
            options=options,
            source=self._source,
        )
        for n in names:
            self._refuse_duplicate(kind.name, n)
        self._providers.update({(kind.name, n): provider for n in names})

    def providers(
        self, kind: str | None = None, *, plugin: str | None = None
    ) -> tuple[Provider, ...]:
        """Offered providers, in order; only of one kind or of one plugin, if given."""
        unique = dict.fromkeys(self._providers.values())
        return tuple(
            p for p in unique if kind in (None, p.kind) and plugin in (None, p.source.plugin)
        )

    def find(
        self, kind: str, name: str, *, not_enabled: Sequence[str] = (), left_out: Sequence[str] = ()
    ) -> Provider:
        """The provider with this name or alias. Raises PluginError that lists the known names.

        The message also lists plugins that are `not_enabled`, and the errors of plugins that were
        `left_out`.
        """
        provider = self._providers.get((kind, normalize(name)))
        if provider is None:
            raise PluginError(self._unknown(kind, name, not_enabled, left_out))
        return provider

    def has(self, kind: str, name: str) -> bool:
        """Whether a provider of this kind has this name or alias."""
        return (kind, normalize(name)) in self._providers

    def build(
        self,
        kind: str,
        name: str,
        options: Mapping[str, object] | None = None,
        *,
        context: PluginContext | None = None,
        where: str | None = None,
    ) -> Any:
        """Validate the options of a provider and call its factory.

        `where` names the table that the options come from. Raises PluginError, whose message is one
        line, for invalid options and for a factory that fails.
        """
        provider = self.find(kind, name)
        arguments: list[object] = [context] if KINDS[kind].is_watcher else []
        where = where or f"[{kind}]"
        if provider.options is None:
            refuse_options(options or {}, where=where, name=provider.name)
        else:
            arguments.append(
                build_options(provider.options, options or {}, where=where, name=provider.name)
            )
        return _make(provider, arguments)

    def withdraw(self, source: Source) -> None:
        """Remove all offers of a plugin that failed after it registered."""
        for key in [k for k, p in self._providers.items() if p.source == source]:
            del self._providers[key]

    def _refuse_duplicate(self, kind: str, name: str) -> None:
        other = self._providers.get((kind, name))
        if other is not None:
            raise PluginError(
                f"{label(kind)} {name!r} is provided by both {other.source} and {self._source}; "
                "disable one in plugins.toml"
            )

    def _unknown(
        self, kind: str, name: str, not_enabled: Sequence[str], left_out: Sequence[str]
    ) -> str:
        known = sorted(n for k, n in self._providers if k == kind)
        near = did_you_mean(normalize(name), [*known, *not_enabled]) or "."
        text = f"no {label(kind)} named {name!r}{near} Known: {listed(known) or 'none'}."
        if not_enabled:
            text += f" Installed but not enabled: {listed(not_enabled)}."
            text += " A provider with another name than its plugin needs `[plugins] enable`."
        if left_out:
            text += f" Left out: {'; '.join(left_out)}."
        return text


def label(kind: str) -> str:
    """The name of a kind in messages."""
    return kind.replace("_", " ")


def _make(provider: Provider, arguments: Sequence[object]) -> object:
    name = f"{label(provider.kind)} {provider.name!r} of"
    what = f"{name} {provider.source}"
    try:
        built = START_CALLS.call(f"building {name}", provider.source, provider.factory, *arguments)
    except CONTAINED as error:
        raise PluginError(f"{what} could not be built: {describe(error)}") from error
    kind = KINDS[provider.kind]
    if built is None and kind.is_watcher:
        return None
    if missing := kind.lacks(built):
        raise PluginError(f"{what} lacks {' and '.join(missing)}: its factory returned {built!r}")
    return built
