"""Which provider fills each slot, with which options: flag or constructor, then plugins.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..config import EngineConfig, flag
from ..contract.choice import Choice
from ..contract.registry import SLOTS, Provider, label
from ..errors import ConfigError, PluginError
from ..log import get_logger
from ..speculation_settings import OPTION_FLAGS, SpeculationSettings
from .plugin_set import PluginSet
from .plugins_file import SlotSetting, Table

SPECULATION = "speculative_method"
NO_SPECULATION = "none"
"""The provider of that slot that stands for none at all."""
_SWITCHES = {
    "scheduler": ("enable_chunked_prefill", "chunked", "prefill-first"),
    "draft_length": ("speculative_adaptive", "adaptive", "fixed"),
}
"""Flags that are on or off, and the provider that each of the two selects."""
_log = get_logger("plugins")


def choose(config: EngineConfig, plugins: PluginSet) -> dict[str, Choice]:
    """The provider of every slot. Raises PluginError or ConfigError in one line."""
    choices = {slot: _choose(slot, _flagged(slot, config, plugins), plugins) for slot in SLOTS}
    choices[SPECULATION] = _speculate(choices[SPECULATION], config.speculation())
    return choices


def chosen_names(choices: Mapping[str, Choice]) -> dict[str, str]:
    """The names alone, by slot."""
    return {slot: choice.name for slot, choice in choices.items()}


def configured(slot: str, plugins: PluginSet) -> Choice:
    """What plugins.toml says, flags aside."""
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
    """With what the flags say about the speculative method. Raises ConfigError if it is no use."""
    name = choice.provider.name
    needs = {o.name: o.default == "required" for o in choice.provider.describe().options}
    if name == NO_SPECULATION and settings.given and settings.method is None:
        raise ConfigError(
            f"{' and '.join(settings.given)} has no effect without a method: say which, for example "
            "--speculative-method ngram"
        )
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
    """The same provider, or "auto", whose options are for whichever backend it takes."""
    return (choice.provider, *choice.others) == tuple(providers)


def _setting(slot: str, plugins: PluginSet) -> SlotSetting:
    empty = SlotSetting(use=None, options={}, origin=f"{plugins.settings.origin} [{slot}]")
    return plugins.settings.slots.get(slot, empty)


def _find(slot: str, name: str, plugins: PluginSet) -> tuple[Provider, ...]:
    """By name; for attention, auto is every backend that enabled plugins offer, in their order,
    and two names are a pair."""
    if slot != "attention_backend":
        return (plugins.find(slot, name),)
    offered = plugins.registry.providers(slot)
    if name == "auto" and offered:
        return offered
    names = [part.strip() for part in name.split(",")]
    if len(names) > 2:
        raise ConfigError(
            f"{flag(slot)} takes one backend, or two: one for prompts and one for decodes, as in "
            f"flash-attn,cuda-paged; got {name!r}"
        )
    return tuple(plugins.find(slot, part) for part in names)


def _flagged(slot: str, config: EngineConfig, plugins: PluginSet) -> str | None:
    """What a flag or the constructor says, an object that was handed over included."""
    named, own = _named(slot, config, plugins), plugins.handed_over.get(slot)
    if named is not None and own is not None:
        raise ConfigError(
            f"{slot}={named!r} chooses a {label(slot)}, and plugin {own!r} was handed over as one: "
            "give only one of them"
        )
    return own or named


def _named(slot: str, config: EngineConfig, plugins: PluginSet) -> str | None:
    """What a flag says, flags that are on or off included."""
    if slot == SPECULATION:
        return config.speculation().method
    named: str | None = getattr(config, slot)
    if slot not in _SWITCHES:
        return named
    switch, if_on, if_off = _SWITCHES[slot]
    is_on: bool | None = getattr(config, switch)
    if is_on is None:
        return named
    implied = if_on if is_on else if_off
    if named is not None and plugins.find(slot, named) is not plugins.find(slot, implied):
        raise ConfigError(
            f"{flag(switch)}={is_on} selects the {label(slot)} {implied!r}, but {flag(slot)} says "
            f"{named!r}: give only one of them"
        )
    return implied
