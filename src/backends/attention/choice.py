"""Turns the configured attention backend into one class: a backend, `auto`, or a pair of two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...core.contract.choice import Choice
from ...core.contract.provider_options import build_options
from ...core.contract.registry import Provider, Registry
from ...core.errors import PluginError
from ...core.interfaces import Progress, no_progress
from ...core.log import get_logger
from ...core.suggest import did_you_mean
from .pair import BackendPair, build_pair
from .reasons import reasons_against

log = get_logger("plugins")


class Plugins(Protocol):
    """The plugin host, as far as it is needed here."""

    @property
    def registry(self) -> Registry: ...
    def choice(self, slot: str) -> Choice: ...


def choose_attention_backend(plugins: Plugins, progress: Progress = no_progress) -> Any:
    """A backend's class, or an object that is used like one (see AttentionBackend).

    It builds the providers, and so imports torch and what they need. Raises PluginError for an
    option that no chosen backend takes.
    """
    registry, choice = plugins.registry, plugins.choice("attention_backend")
    if choice.is_pair:
        return BackendPair(*build_pair(registry, choice))
    if choice.others:
        return AutoBackend(registry, choice, progress)
    provider = choice.provider
    return registry.build(provider.kind, provider.name, choice.options, where=choice.origin)


class AutoBackend:
    """`auto`: makes the first backend, in the order of preference, that can serve the spec.

    A backend is imported only when the ones before it cannot serve. The backend that is taken gets
    the options.
    """

    name = "auto"
    kv_cache_dtypes = None
    """Those of the backend that is taken."""

    def __init__(self, registry: Registry, choice: Choice, progress: Progress) -> None:
        """Raises PluginError for an option that no candidate takes, and for a value that is wrong
        for one that does: the same on every machine, whichever backend that one takes.
        """
        providers = (choice.provider, *choice.others)
        self._registry, self._progress = registry, progress
        self._options, self._where = choice.options, choice.origin
        self._candidates = {p: _options_of(p, choice.options) for p in providers}
        _refuse_unknown(choice.options, providers, choice.origin)
        for provider, own in self._candidates.items():
            if own and provider.options is not None:
                build_options(provider.options, own, where=choice.origin, name=provider.name)

    def reasons_against(self, spec: Any) -> list[str]:
        """Nothing if any of them can, else all reasons of all of them.

        Raises PluginError if the one that can does not take an option that is set.
        """
        chosen, reasons = self._choose(spec)
        return [] if chosen is not None else reasons

    def __call__(self, spec: Any) -> Any:
        """The chosen backend for this spec; says which it is, and why others were passed over."""
        chosen, reasons = self._choose(spec)
        assert chosen is not None, "it is asked for reasons before"
        backend = chosen(spec)
        log.info("attention_backend_chosen", backend=backend.name, passed_over=reasons)
        return backend

    def _choose(self, spec: Any) -> tuple[Any, list[str]]:
        passed_over: list[str] = []
        for provider, own in self._candidates.items():
            try:
                backend = self._registry.build(provider.kind, provider.name, own, where=self._where)
                reasons = reasons_against(backend, spec, self._progress)
            except PluginError as error:
                reasons = [str(error)]
            if not reasons:
                self._refuse_options_of_others(provider, passed_over)
                return backend, passed_over
            passed_over += [f"{provider.name}: {reason}" for reason in reasons]
        return None, passed_over

    def _refuse_options_of_others(self, chosen: Provider, passed_over: Sequence[str]) -> None:
        others = [key for key in self._options if key not in self._candidates[chosen]]
        if others:
            reasons = f" ({'; '.join(passed_over)})" if passed_over else ""
            raise PluginError(
                f"{self._where} {others[0]}: 'auto' takes {chosen.name!r} here{reasons}, which has "
                "no such option: remove it, or name the backend that it is for in `use`"
            )


def _options_of(provider: Provider, options: Mapping[str, object]) -> dict[str, object]:
    """Those that this backend takes."""
    known = _option_names(provider)
    return {key: value for key, value in options.items() if key.replace("-", "_") in known}


def _option_names(provider: Provider) -> list[str]:
    if provider.options is None:
        return []
    return [field.name for field in dataclasses.fields(provider.options) if field.init]


def _refuse_unknown(
    options: Mapping[str, object], providers: Sequence[Provider], where: str
) -> None:
    known = dict.fromkeys(name for provider in providers for name in _option_names(provider))
    for key in options:
        if key.replace("-", "_") not in known:
            names = ", ".join(provider.name for provider in providers)
            takes = f"They take: {', '.join(known)}" if known else "They take none"
            raise PluginError(
                f"{where} {key}: no backend that 'auto' may take ({names}) has such an option. "
                f"{takes}{did_you_mean(key, known) or '.'}"
            )
