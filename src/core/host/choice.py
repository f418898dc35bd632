"""Chooses the provider and options of each slot: from flags or constructor, then plugins.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..config import EngineConfig
from ..contract.choice import Choice
from ..contract.registry import Provider, label
from ..errors import ConfigError, PluginError
from ..kinds import ATTENTION_BACKEND, KINDS, SLOTS, SPECULATIVE_METHOD
from ..log import get_logger
from ..settings.declaration import flag
from ..settings.speculation import OPTION_FLAGS, SpeculationSettings
from .plugin_set import PluginSet
from .plugins_file import SlotSetting, Table

SPECULATION = SPECULATIVE_METHOD.name
_log = get_logger("plugins")


def choose(config: EngineConfig, plugins: PluginSet) -> dict[str, Choice]:
    """The choice for every slot. Raises PluginError or ConfigError with a one-line message."""
    choices = {slot: choose_slot(slot, config, plugins) for slot in SLOTS}
    choices[SPECULATION] = _speculate(choices[SPECULATION], config.speculation())
    return choices


def choose_slot(slot: str, config: EngineConfig, plugins: PluginSet) -> Choice:
    """The choice for one slot. Raises PluginError or ConfigError with a one-line message."""
    return _choose(slot, _flagged(slot, config, plugins), plugins)


def chosen_names(choices: Mapping[str, Choice]) -> dict[str, str]:
    return {slot: choice.name for slot, choice in choices.items()}


def configured(slot: str, plugins: PluginSet) -> Choice:
    """The choice of plugins.toml for a slot, without flags. Raises PluginError."""
    setting = _setting(slot, plugins)
    if setting.use is None:
        raise PluginError(f"{setting.origin}: no {label(slot)} is chosen; add `use = ...`")
    try:
        providers = _find(slot, setting.use, plugins)
    except PluginError as error:
        raise PluginError(f"{setting.origin}: {error}") from error
    return _made(providers, setting.use, setting.options, setting.origin)


def _choose(slot: str, flagged: str | None, plugins: PluginSet) -> Choice:
    if flagged is None:
        return configured(slot, plugins)
    providers = _find(slot, flagged, plugins)
    setting = _setting(slot, plugins)
    options = setting.options
    if options and setting.use and not _chooses(configured(slot, plugins), providers):
        _log.warning(
            "plugin_options_unused",
            table=setting.origin,
            written_for=setting.use,
            chosen=flagged,
        )
        options = {}
    return _made(providers, flagged, options, setting.origin)


def _speculate(choice: Choice, settings: SpeculationSettings) -> Choice:
    """Add the options of the flags to the chosen method. Raises ConfigError if they do not fit."""
    name = choice.provider.name
    needs = _option_needs(choice.provider)
    options = {**choice.options, **settings.options}
    if "model" in settings.options and "model" not in needs:
        raise ConfigError(
            f"--speculative-model has no effect: the speculative method {name!r} takes no model"
        )
    if needs.get("model") and "model" not in options:
        raise ConfigError(
            f"the speculative method {name!r} needs a model: --speculative-model PATH, or "
            '"model" in --speculative-config'
        )
    if not settings.options:
        return choice
    said = [flag for flag in settings.given if flag in OPTION_FLAGS]
    origin = [choice.origin] if choice.options else []
    return replace(choice, options=options, origin=" and ".join([*origin, *said]))


def _made(providers: Sequence[Provider], name: str, options: Table, origin: str) -> Choice:
    return Choice(
        provider=providers[0],
        options=options,
        origin=origin,
        others=tuple(providers[1:]),
        is_pair="," in name,
    )


def _chooses(choice: Choice, providers: Sequence[Provider]) -> bool:
    """Whether the choice consists of exactly these providers."""
    return (choice.provider, *choice.others) == tuple(providers)


def _setting(slot: str, plugins: PluginSet) -> SlotSetting:
    empty = SlotSetting(use=None, options={}, origin=f"{plugins.settings.origin} [{slot}]")
    return plugins.settings.slots.get(slot, empty)


def _find(slot: str, name: str, plugins: PluginSet) -> tuple[Provider, ...]:
    """The providers with this name; several only for backends.

    "auto" means every backend that enabled plugins offer, in their order. For attention, two names
    mean a pair.
    """
    offered = plugins.registry.providers(slot)
    if KINDS[slot].has_auto and name == "auto" and offered:
        return offered
    if slot != ATTENTION_BACKEND.name:
        return (plugins.find(slot, name),)
    names = [part.strip() for part in name.split(",")]
    if len(names) > 2:
        raise ConfigError(
            f"{flag(slot)} takes one backend, or two: one for prompts and one for decodes, as in "
            f"flash-attn,cuda-paged; got {name!r}"
        )
    return tuple(plugins.find(slot, part) for part in names)


def _flagged(slot: str, config: EngineConfig, plugins: PluginSet) -> str | None:
    """The name that a flag or the constructor gives, or that of an object that was passed in."""
    named, own = _named(slot, config, plugins), plugins.policy_objects.get(slot)
    if named is not None and own is not None:
        raise ConfigError(
            f"{slot}={named!r} chooses a {label(slot)}, but plugin {own!r} was passed in as one; "
            "give only one of them"
        )
    return own or named


def _named(slot: str, config: EngineConfig, plugins: PluginSet) -> str | None:
    """The name that flags give: by name, by a flag that is on or off, or by a draft model."""
    if slot == SPECULATION:
        settings = config.speculation()
        needs_model = "model" in settings.options and settings.method is None
        return _method_with_model(plugins) if needs_model else settings.method
    named, switch = config.chosen(slot), KINDS[slot].switch
    is_on: bool | None = None if switch is None else getattr(config, switch)
    if switch is None or is_on is None:
        return named
    if named is None:
        return _selected_by(slot, switch, is_on, plugins)
    if plugins.find(slot, named).switch is not is_on:
        raise ConfigError(
            f"{flag(switch)}={is_on} does not select the {label(slot)} {named!r} that "
            f"{flag(slot)} names: give only one of them"
        )
    return named


def _selected_by(slot: str, switch: str, is_on: bool, plugins: PluginSet) -> str:
    for provider in plugins.registry.providers(slot):
        if provider.switch is is_on:
            return provider.name
    raise ConfigError(
        f"{flag(switch)}={is_on} selects no {label(slot)}: no enabled plugin declares it"
    )


def _method_with_model(plugins: PluginSet) -> str | None:
    """The first speculative method that takes a model."""
    for provider in plugins.registry.providers(SPECULATION):
        if "model" in _option_needs(provider):
            return provider.name
    return None


def _option_needs(provider: Provider) -> dict[str, bool]:
    """By option: whether it is required."""
    return {option.name: option.default == "required" for option in provider.describe().options}
