"""Lists and describes plugins for `tokenmill plugins list` and `show`, even if some are broken."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import replace

from ..contract.plugin_info import OptionInfo, PluginDescription, PluginInfo, normalize
from ..contract.registry import Provider
from ..errors import PluginError, describe
from ..kinds import ATTENTION_BACKEND, SLOTS
from ..wording.suggest import near_and_known
from .choice import configured
from .plugin_set import PluginSet
from .plugins_file import PluginSettings, read_settings


def discover_plugins(plugins_file: str | None = None) -> tuple[PluginInfo, ...]:
    """Every installed plugin with its state under plugins.toml. Only enabled ones are imported.

    Raises ConfigError if a plugins.toml cannot be read, PluginError if tokenmill's own plugins are
    not installed.
    """
    plugins = _load(plugins_file)
    return plugins.infos(chosen=_chosen(plugins))


def describe_plugin(name: str, plugins_file: str | None = None) -> PluginDescription:
    """One plugin with its providers and their options. It is imported, even if it is not enabled.

    `name` may also be the name of a provider. Attention backends report what they find on this
    machine, and may import packages for that. Raises PluginError if nothing has this name.
    """
    plugins = _load(plugins_file)
    info = _info(plugins, name)
    if info.state in ("available", "disabled"):
        plugins.load(info.name)
        loaded = _info(plugins, name)
        info = replace(loaded, state=info.state if loaded.error is None else "failed")
    objects = plugins.loaded[info.name].objects if info.name in plugins.loaded else [None]
    return PluginDescription(
        info=info,
        doc=inspect.getdoc(objects[0]) or "" if objects[0] is not None else "",
        providers=tuple(
            replace(
                p.describe(),
                options=_options(p, plugins.settings),
                on_this_machine=_findings(p, plugins),
            )
            for p in plugins.registry.providers(plugin=info.name)
        ),
    )


def _options(provider: Provider, settings: PluginSettings) -> tuple[OptionInfo, ...]:
    """The options of a provider, with the values from plugins.toml."""
    names = {provider.name, *provider.aliases}
    slot = settings.slots.get(provider.kind)
    given: dict[str, object] = {}
    if slot is not None and slot.use is not None and normalize(slot.use) in names:
        given.update(slot.options)
    for (kind, name), setting in settings.named.items():
        if kind == provider.kind and normalize(name) in names:
            given.update(setting.options)
    return tuple(
        replace(option, configured=repr(given[option.name])) if option.name in given else option
        for option in provider.describe().options
    )


def _findings(provider: Provider, plugins: PluginSet) -> tuple[str, ...]:
    if provider.kind != ATTENTION_BACKEND.name:
        return ()
    try:
        backend = plugins.registry.build(provider.kind, provider.name)
        return tuple(backend.on_this_machine()) if backend.capabilities.reports else ()
    except Exception as error:  # the description shows errors instead of failing
        return (describe(error),)


def _load(plugins_file: str | None) -> PluginSet:
    plugins = PluginSet(read_settings(plugins_file))
    plugins.load_enabled()
    return plugins


def _info(plugins: PluginSet, name: str) -> PluginInfo:
    infos = {info.name: info for info in plugins.infos(chosen=_chosen(plugins))}
    if normalize(name) not in infos:
        offered = [
            one
            for one in plugins.registry.providers()
            if normalize(name) in (one.name, *one.aliases)
        ]
        if offered:
            return infos[offered[0].source.plugin]
        raise PluginError(f"no plugin named {name!r}{near_and_known(normalize(name), infos)}")
    return infos[normalize(name)]


def _chosen(plugins: PluginSet) -> dict[str, str]:
    chosen = dict.fromkeys(SLOTS, "")
    for slot in SLOTS:
        with suppress(PluginError):  # the list shows errors instead of failing
            chosen[slot] = configured(slot, plugins).name
    return chosen
