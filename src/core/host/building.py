"""From settings to live objects: slots filled, enabled observers built, all registered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..config import EngineConfig
from ..contract.choice import Choice
from ..contract.draft_length import DraftLengthPolicy
from ..contract.plugin_info import Source
from ..contract.policy import SchedulingPolicy
from ..contract.registry import PluginContext, Provider
from ..contract.speculation import Speculator
from ..errors import ConfigError, PluginError
from ..speculation_settings import SpeculationSettings
from .choice import choose
from .hook_checks import SLOT_HOOKS, register_checked
from .plugin_set import PluginSet
from .plugins_file import NamedSetting, read_settings

_HOOK_OF_SLOT = {kind: hook for hook, kind in SLOT_HOOKS.items()}


@dataclass(slots=True, kw_only=True)
class BuiltPlugins:
    """All that a PluginHost runs on."""

    plugins: PluginSet
    choices: Mapping[str, Choice]
    """The provider of each slot."""
    order: SchedulingPolicy = field(init=False)
    draft_length: DraftLengthPolicy = field(init=False)
    speculator: Speculator = field(init=False)
    """The speculative method itself; "none" is one, too."""
    speculation: SpeculationSettings
    preemption_modes: tuple[str, ...] = ()
    """The modes that the chosen preemption mode may answer."""
    sources: dict[str, Source] = field(default_factory=dict)
    """By the name under which pluggy knows an object."""


def build_plugins(config: EngineConfig, extra: Iterable[object] = ()) -> BuiltPlugins:
    """Load, choose and build. Raises PluginError or ConfigError in one line."""
    plugins = PluginSet(read_settings(config.plugins_file))
    plugins.load_enabled()
    for plugin in extra:
        plugins.add(plugin)
    plugins.refuse_failures()
    built = BuiltPlugins(
        plugins=plugins, choices=choose(config, plugins), speculation=config.speculation()
    )
    plugins.refuse_failures()  # a choice may have made another plugin necessary
    _check_named(plugins)
    built.order = fill_slot(built, "scheduling_policy")
    built.draft_length = fill_slot(built, "draft_length")
    fill_slot(built, "scheduler")
    built.speculator = fill_slot(built, "speculative_method")
    built.preemption_modes = tuple(fill_slot(built, "preemption_mode").modes)
    _build_watchers(built, PluginContext(config=config))
    built.sources.update((name, p.source) for name, p in plugins.loaded.items())
    return built


def fill_slot(built: BuiltPlugins, slot: str) -> Any:
    """What the factory of the slot's provider returns. Raises PluginError in one line."""
    choice = built.choices[slot]
    name = choice.provider.name
    filled = built.plugins.registry.build(slot, name, choice.options, where=choice.origin)
    if slot in _HOOK_OF_SLOT:
        _register(built, choice.provider, filled, fills=_HOOK_OF_SLOT[slot])
    return filled


def _check_named(plugins: PluginSet) -> None:
    """Raise ConfigError for options of an observer or admission that nobody offers."""
    excused = {*plugins.settings.disable, *plugins.failed}
    for (kind, name), setting in plugins.settings.named.items():
        if name not in excused and not plugins.registry.has(kind, name):
            try:
                plugins.find(kind, name)
            except PluginError as error:
                raise ConfigError(f"{setting.origin}: {error}") from error


def _build_watchers(built: BuiltPlugins, context: PluginContext) -> None:
    registry = built.plugins.registry
    for provider in (*registry.providers("observer"), *registry.providers("admission")):
        if provider.source.plugin not in built.plugins.loaded:
            continue  # left out, because an earlier provider of the same plugin failed
        try:
            _build_watcher(built, provider, context)
        except PluginError as error:
            _leave_out(built, provider.source, error)


def _build_watcher(built: BuiltPlugins, provider: Provider, context: PluginContext) -> None:
    setting = built.plugins.settings.named.get(
        (provider.kind, provider.name),
        NamedSetting(options=MappingProxyType({}), origin=f"[{provider.kind}.{provider.name}]"),
    )
    watcher = built.plugins.registry.build(
        provider.kind, provider.name, setting.options, context=context, where=setting.origin
    )
    if watcher is not None:
        _register(built, provider, watcher)


def _leave_out(built: BuiltPlugins, source: Source, error: PluginError) -> None:
    built.plugins.fail(source.plugin, str(error))
    built.plugins.refuse_failures()
    if any(choice.provider.source == source for choice in built.choices.values()):
        raise error  # it also fills a slot, so there is no leaving it out


def _register(
    built: BuiltPlugins, provider: Provider, plugin: object, *, fills: str | None = None
) -> None:
    name = f"{provider.source.plugin}/{provider}"
    register_checked(built.plugins.manager, plugin, name, provider.source, fills=fills)
    built.plugins.loaded[provider.source.plugin].objects.append(plugin)
    built.sources[name] = provider.source
