"""The plugins of one engine, loaded one at a time so that a broken one does not affect others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from traceback import format_exception
from typing import Any

from ..config import EngineConfig
from ..contract.plugin_info import PluginInfo, PluginState, Source, normalize
from ..contract.registry import PluginContext, Provider, Registry, label
from ..contract.start_calls import START_CALLS
from ..errors import CONTAINED, PluginError, describe
from ..log import get_logger
from ..wording.suggest import did_you_mean, listed
from ..wording.tracebacks import plugin_frames_first
from .discovery import (
    OWN_DISTRIBUTION,
    check_api,
    check_own_installation,
    find_installed,
    import_plugin,
)
from .hook_checks import HOOKS, implemented_hooks, new_manager, register_checked
from .plugins_file import PluginSettings, settings_of
from .policy_object import PolicyObject, slot_of

_log = get_logger("plugins")


@dataclass(slots=True, kw_only=True)
class LoadedPlugin:
    """A plugin and its objects with hooks: first the plugin itself, then what it provides."""

    source: Source
    objects: list[object] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a plugin is left out."""

    source: Source
    message: str
    """One line."""
    traceback: str = ""
    """For an exception in the plugin's code, its own frames first; empty for other failures."""


class PluginSet:
    """Finds, imports and registers plugins. Keeps their offers, and the errors of failed ones.

    The constructor raises PluginError if tokenmill's own plugins are not installed.
    """

    def __init__(self, settings: PluginSettings) -> None:
        self.settings = settings
        self.manager = new_manager()
        self.registry = Registry()
        self.loaded: dict[str, LoadedPlugin] = {}
        self.failed: dict[str, Failure] = {}
        self.policy_objects: dict[str, str] = {}
        """By slot: the name of the object that the program passed in to fill it."""
        self.sources: dict[str, Source] = {}
        """By the name that an object has in pluggy."""
        self._installed = find_installed()
        own = {n for n, p in self._installed.items() if p.source.distribution == OWN_DISTRIBUTION}
        self._off = own.difference(settings.builtin)
        """Plugins of tokenmill that are off by default. A message about others does not list them.
        """
        check_own_installation(self._installed.values(), settings.builtin)

    def is_current(self, settings: PluginSettings) -> bool:
        """Whether a set with these settings would have the same plugins."""
        return self.settings == settings and self._installed is find_installed()

    def load_enabled(self) -> None:
        """Load the plugins that the settings enable. Failures are kept in `failed`."""
        for name in self.settings.enabled:
            self.load(name)

    def load(self, name: str) -> None:
        """Import one plugin and let it register. A failure is kept in `failed`."""
        installed = self._installed.get(name)
        source = installed.source if installed else Source(plugin=name)
        try:
            if installed is None:
                flag = self.settings.flags.get(name)
                why = f"named by {flag}" if flag else f"enabled in {self.settings.origin}"
                raise PluginError(
                    f"plugin {name!r} is {why}, but not installed"
                    f"{self._in_package(name) or did_you_mean(name, self._installed)}"
                )
            self._adopt(import_plugin(installed), source)
        except PluginError as error:
            self.failed[name] = _failure(source, error)

    def add(self, plugin: object) -> None:
        """Add a module or object of the embedding program. Raises PluginError.

        An object that is a policy fills its slot; it needs no name and no `register`.
        """
        source = Source(plugin=self._free_name(plugin))
        check_api(plugin, source, required=False)
        if hasattr(plugin, "reasons_against"):
            raise PluginError(
                f"{source} is an attention backend, which needs a name: pass an object whose "
                "'register' calls registry.offer(kinds.ATTENTION_BACKEND, \"NAME\", ...), and set "
                'attention_backend="NAME"'
            )
        slot = slot_of(self.manager, plugin)
        if slot in self.policy_objects:
            raise PluginError(
                f"{source} and plugin {self.policy_objects[slot]!r} are both passed in as "
                f"{label(slot)}; give only one of them"
            )
        if slot is not None:
            plugin = PolicyObject(plugin, slot, source.plugin)
            self.policy_objects[slot] = source.plugin
        self._adopt(plugin, source)

    def find(self, kind: str, name: str) -> Provider:
        """The provider with this name. Loads the installed plugin of the same name if needed.

        Raises PluginError if no plugin has it, or if that plugin fails to load.
        """
        plugin = normalize(name)
        if not self.registry.has(kind, name) and self._may_still_load(plugin):
            self.load(plugin)
        if not self.registry.has(kind, name) and plugin in self.failed:
            raise PluginError(self.failed[plugin].message)
        return self.registry.find(
            kind,
            name,
            not_enabled=[p for p in self._installed if p not in self._seen() | self._off],
            left_out=[one.message for one in self.failed.values()],
        )

    def build_all(self, kind: str) -> Iterator[tuple[Provider, Any]]:
        """Every provider of a kind, built with the options of its own table. Raises PluginError."""
        for provider in self.registry.providers(kind):
            yield provider, self.build(provider)

    def build(self, provider: Provider, context: PluginContext | None = None) -> Any:
        """A provider of no slot, built with the options of its own table. Raises PluginError."""
        kind, name = provider.kind, provider.name
        setting = self.settings.named.get((kind, name))
        options = setting.options if setting else {}
        where = setting.origin if setting else f"[{kind}.{name}]"
        return self.registry.build(kind, name, options, context=context, where=where)

    def register(self, provider: Provider, built: object, *, fills: str | None = None) -> None:
        """Register the hooks of the object that a provider's factory returned. Raises PluginError.

        `fills` is the hook of the slot for which the provider was chosen, if any.
        """
        name = f"{provider.source.plugin}/{provider}"
        register_checked(self.manager, built, name, provider.source, fills=fills)
        self.loaded[provider.source.plugin].objects.append(built)
        self.sources[name] = provider.source

    def fail(self, name: str, error: PluginError) -> None:
        """Remove a loaded plugin because one of its providers could not be built."""
        loaded = self.loaded.pop(name)
        for plugin in loaded.objects:
            if self.manager.is_registered(plugin):
                self.manager.unregister(plugin)
        self.registry.withdraw(loaded.source)
        self.failed[name] = _failure(loaded.source, error)

    def refuse_failures(self) -> None:
        """Log all failures. Raise PluginError with them unless the settings have strict = false."""
        for one in self.failed.values():
            _log_once(one)
        if self.settings.strict is not False and self.failed:
            raise PluginError("; ".join(one.message for one in self.failed.values()))

    def infos(self, *, chosen: Mapping[str, str]) -> tuple[PluginInfo, ...]:
        """Every plugin: loaded ones in order, then failed ones, then the other installed ones.

        `chosen` is the name of the chosen provider, by slot.
        """
        rest = [p for name, p in self._installed.items() if name not in self._seen()]
        return (
            *(self._info(p.source, "enabled", chosen, p.objects) for p in self.loaded.values()),
            *(
                self._info(one.source, "failed", chosen, error=one.message, traceback=one.traceback)
                for one in self.failed.values()
            ),
            *(
                self._info(p.source, self._idle_state(p.source), chosen, error=p.conflict)
                for p in rest
            ),
        )

    def _adopt(self, plugin: object, source: Source) -> None:
        register_checked(self.manager, plugin, source.plugin, source)
        try:
            with self.registry.accepting(source):
                START_CALLS.call("in 'register' of", source, self._call_register, plugin)
        except CONTAINED as error:
            self.manager.unregister(plugin, source.plugin)
            if isinstance(error, PluginError):
                raise
            raise PluginError(f"{source} failed in 'register': {describe(error)}") from error
        self.loaded[source.plugin] = LoadedPlugin(source=source, objects=[plugin])
        self.sources[source.plugin] = source

    def _call_register(self, plugin: object) -> None:
        others = [p for p in self.manager.get_plugins() if p is not plugin]
        self.manager.subset_hook_caller("register", others)(registry=self.registry)

    def _may_still_load(self, name: str) -> bool:
        return (
            name in self._installed
            and name not in self._seen()
            and name not in self.settings.disable
        )

    def _in_package(self, name: str) -> str:
        """A hint if `name` is the name of a package instead of its plugin."""
        sources = [plugin.source for plugin in self._installed.values()]
        offered = [s.plugin for s in sources if normalize(s.distribution.lower()) == name.lower()]
        return f"; the package of that name has the plugin {listed(offered)}" if offered else ""

    def _seen(self) -> set[str]:
        return {*self.loaded, *self.failed}

    def _idle_state(self, source: Source) -> PluginState:
        return "disabled" if source.plugin in self.settings.disable else "available"

    def _free_name(self, plugin: object) -> str:
        name = normalize(getattr(plugin, "__name__", type(plugin).__name__))
        names = [name, *(f"{name}-{i}" for i in range(2, len(self.loaded) + 3))]
        return next(n for n in names if n not in self._seen() and n not in self._installed)

    def _info(
        self,
        source: Source,
        state: PluginState,
        chosen: Mapping[str, str],
        objects: list[object] | None = None,
        error: str | None = None,
        traceback: str = "",
    ) -> PluginInfo:
        providers = self.registry.providers(plugin=source.plugin)
        return PluginInfo(
            name=source.plugin,
            distribution=source.distribution,
            version=source.version,
            state=state,
            provides=tuple(map(str, providers)),
            chosen=tuple(str(p) for p in providers if p.name in _names(chosen.get(p.kind, p.name))),
            hooks=self._hooks(providers, objects or []),
            error=error,
            traceback=traceback,
        )

    def _hooks(self, providers: tuple[Provider, ...], objects: list[object]) -> tuple[str, ...]:
        factories = [p.factory for p in providers if isinstance(p.factory, type)]
        found = {h for o in (*objects, *factories) for h in implemented_hooks(self.manager, o)}
        return tuple(hook for hook in HOOKS if hook in found)


def _names(chosen: str) -> list[str]:
    """The names in a choice; a pair has two."""
    return chosen.split(",")


_shared: list[PluginSet] = []


def enabled_plugins(config: EngineConfig) -> PluginSet:
    """The enabled plugins for a server, which only builds providers: loaded once per process.

    An engine has a set of its own, with the objects of the program, and without plugins that
    failed. Raises PluginError if a plugin cannot be loaded.
    """
    settings = settings_of(config)
    known = [one for one in _shared if one.is_current(settings)]
    if not known:
        plugins = PluginSet(settings)
        plugins.load_enabled()
        plugins.refuse_failures()
        known = [plugins]
    _shared[:] = known
    return known[0]


def _failure(source: Source, error: PluginError) -> Failure:
    cause = error.__cause__
    text = "" if cause is None else plugin_frames_first("".join(format_exception(cause)))
    return Failure(source=source, message=str(error), traceback=text.rstrip("\n"))


@lru_cache(maxsize=64)
def _log_once(failure: Failure) -> None:
    """Log a failure. A server and its engine may load the same plugins in the same process."""
    trace = {"exception": failure.traceback} if failure.traceback else {}
    _log.error("plugin_not_loaded", **asdict(failure.source), error=failure.message, **trace)
