"""Builds the chosen providers, observers and admissions, and registers their hooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..contract.choice import Choice
from ..contract.metrics import PluginMetrics, metrics_prefix
from ..contract.plugin_info import Source
from ..contract.policy import SchedulingPolicy
from ..contract.provider_options import FOUND
from ..contract.providers.draft_length import DraftLengthPolicy
from ..contract.providers.speculation import Speculator
from ..contract.registry import ONLY_REPLICA, PluginContext, Replica
from ..errors import ConfigError, PluginError
from ..kinds import (
    DRAFT_LENGTH,
    KINDS,
    LOGITS_PROCESSOR,
    PREEMPTION_MODE,
    SCHEDULER,
    SCHEDULING_POLICY,
    SPECULATIVE_METHOD,
)
from ..log import get_logger
from ..members import PROPOSES
from ..settings.speculation import SpeculationSettings
from .choice import choose
from .hook_checks import SLOT_HOOKS, marked_names
from .logits_processors import FoundProcessor
from .plugin_set import PluginSet
from .plugins_file import settings_of

log = get_logger("plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPlugins:
    """The plugins and policies that a PluginHost uses."""

    plugins: PluginSet
    choices: Mapping[str, Choice]
    """The choice for each slot."""
    scheduler: object
    order: SchedulingPolicy
    draft_length: DraftLengthPolicy
    speculator: Speculator
    """The speculative method."""
    speculation: SpeculationSettings
    preemption_modes: tuple[str, ...]
    """The modes that the chosen preemption mode may answer."""
    sources: Mapping[str, Source]
    """By the name that an object has in pluggy."""
    metrics: Mapping[Source, PluginMetrics]
    """The metrics that observers and admissions have made, by plugin."""


def build_plugins(
    config: EngineConfig,
    extra: Iterable[object] = (),
    *,
    watches: bool = True,
    replica: Replica = ONLY_REPLICA,
    is_simulated: bool = False,
) -> BuiltPlugins:
    """Load plugins, choose providers and build them; observers and admissions only if `watches`.

    Raises PluginError or ConfigError with a one-line message.
    """
    settings = settings_of(config)
    if settings.origin == FOUND:
        log.info("plugins_file_found", path=str(Path(FOUND).absolute()))
    plugins = PluginSet(settings)
    plugins.load_enabled()
    for plugin in extra:
        plugins.add(plugin)
    plugins.refuse_failures()
    choices = choose(config, plugins)
    plugins.refuse_failures()  # again, because a choice may have loaded another plugin
    _check_named(plugins)
    direct = {
        name: _build_direct(plugins, choices[name])
        for name, kind in KINDS.items()
        if kind.is_direct
    }
    filled = {slot: _fill(plugins, choices[slot], hook) for hook, slot in SLOT_HOOKS.items()}
    context = PluginContext(config=config, replica=replica, is_simulated=is_simulated)
    metrics = _build_watchers(plugins, choices, context) if watches else {}
    _refuse_unused_flags(filled[SPECULATIVE_METHOD.name], config.speculation())
    return BuiltPlugins(
        plugins=plugins,
        choices=choices,
        scheduler=filled[SCHEDULER.name],
        order=direct[SCHEDULING_POLICY.name],
        draft_length=direct[DRAFT_LENGTH.name],
        speculator=filled[SPECULATIVE_METHOD.name],
        speculation=config.speculation(),
        preemption_modes=tuple(filled[PREEMPTION_MODE.name].modes),
        sources=plugins.sources,
        metrics=metrics,
    )


def build_choice(plugins: PluginSet, choice: Choice) -> Any:
    """Build the chosen provider; returns what its factory returns. Raises PluginError."""
    provider = choice.provider
    return plugins.registry.build(provider.kind, provider.name, choice.options, where=choice.origin)


def _build_direct(plugins: PluginSet, choice: Choice) -> Any:
    policy = build_choice(plugins, choice)
    if marked_names(plugins.manager, policy):  # it has event hooks as well as direct methods
        plugins.register(choice.provider, policy)
    return policy


def _fill(plugins: PluginSet, choice: Choice, hook: str) -> Any:
    filled = build_choice(plugins, choice)
    plugins.register(choice.provider, filled, fills=hook)
    return filled


def _refuse_unused_flags(speculator: Speculator, settings: SpeculationSettings) -> None:
    if settings.given and settings.method is None and not PROPOSES.of(speculator):
        raise ConfigError(
            f"{' and '.join(settings.given)} has no effect without a method: choose one, for "
            "example --speculative-method ngram"
        )


def _check_named(plugins: PluginSet) -> None:
    """Raise ConfigError for options of an observer or admission that no plugin offers."""
    excused = {*plugins.settings.disable, *plugins.failed}
    for (kind, name), setting in plugins.settings.named.items():
        if name not in excused and not plugins.registry.has(kind, name):
            try:
                plugins.find(kind, name)
            except PluginError as error:
                raise ConfigError(f"{setting.origin}: {error}") from error


def _build_watchers(
    plugins: PluginSet, choices: Mapping[str, Choice], common: PluginContext
) -> Mapping[Source, PluginMetrics]:
    registry = plugins.registry
    metrics: dict[Source, PluginMetrics] = {}
    watchers = [name for name, kind in KINDS.items() if kind.is_watcher]
    for provider in (one for name in watchers for one in registry.providers(name)):
        if provider.source.plugin not in plugins.loaded:
            continue  # an earlier provider of the same plugin failed, so the plugin is left out
        prefix = metrics_prefix(common.config.metrics_prefix, provider.source.plugin)
        own = metrics.setdefault(provider.source, PluginMetrics(prefix))
        context = replace(common, metrics=own)
        try:
            watcher = plugins.build(provider, context)
            if watcher is not None:
                plugins.register(provider, watcher)
        except PluginError as error:
            plugins.fail(provider.source.plugin, error)
            plugins.refuse_failures()
            if any(choice.provider.source == provider.source for choice in choices.values()):
                raise  # the plugin also fills a slot, so it cannot be left out
    return metrics


def build_logits_processors(plugins: PluginSet) -> dict[str, FoundProcessor]:
    """Build the classes of all logits processors of loaded plugins. Raises PluginError."""
    return {
        provider.name: FoundProcessor(built, provider.source)
        for provider, built in plugins.build_all(LOGITS_PROCESSOR.name)
    }
