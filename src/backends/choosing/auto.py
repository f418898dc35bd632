"""`auto`: the first of several backends that can serve a specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ...core.contract.choice import Choice
from ...core.contract.provider_options import build_options
from ...core.contract.registry import Provider, Registry
from ...core.errors import PluginError
from ...core.interfaces import Progress
from ...core.log import get_logger
from ...core.wording.suggest import did_you_mean

log = get_logger("plugins")

Reasons = Callable[[Any, Any, Progress], list[str]]
"""reasons(backend, spec, progress): every reason why a backend cannot serve a spec."""


class Plugins(Protocol):
    """The part of the plugin host that the choice of a backend uses."""

    @property
    def registry(self) -> Registry: ...
    def choice(self, slot: str) -> Choice: ...


def choose(plugins: Plugins, slot: str, reasons: Reasons, progress: Progress) -> Any:
    """Return the class that fills a slot: the only candidate, or AutoBackend for several.

    Raises PluginError for an option that no candidate takes.
    """
    registry, choice = plugins.registry, plugins.choice(slot)
    if choice.others:
        return AutoBackend(registry, choice, reasons, progress)
    provider = choice.provider
    return registry.build(provider.kind, provider.name, choice.options, where=choice.origin)


class AutoBackend:
    """`auto`: makes the first backend, in the order of preference, that can serve the spec.

    A backend is imported only when all earlier ones cannot serve. The chosen backend gets the
    options.
    """

    name = "auto"

    def __init__(
        self, registry: Registry, choice: Choice, reasons: Reasons, progress: Progress
    ) -> None:
        """Check the options against all candidates, so that errors are the same on every machine.

        Raises PluginError for an option that no candidate takes, and for a value that is wrong for
        a candidate that takes the option.
        """
        providers = (choice.provider, *choice.others)
        self._registry, self._reasons, self._progress = registry, reasons, progress
        self._options, self._where = choice.options, choice.origin
        self._candidates = {p: options_of(p, choice.options) for p in providers}
        _refuse_unknown(choice.options, providers, choice.origin)
        for provider, own in self._candidates.items():
            if own and provider.options is not None:
                build_options(provider.options, own, where=choice.origin, name=provider.name)

    def reasons_against(self, spec: Any) -> list[str]:
        """Return nothing if a candidate can serve the spec, else all reasons of all candidates.

        Raises PluginError if the candidate that can does not take an option that is set.
        """
        chosen, reasons = self.choose(spec)
        return [] if chosen is not None else reasons

    def __call__(self, spec: Any) -> Any:
        """Make the chosen backend; log its name, and why earlier candidates were passed over."""
        chosen, reasons = self.choose(spec)
        assert chosen is not None, "reasons_against was not called first"
        backend = chosen(spec)
        slot = next(iter(self._candidates)).kind
        log.debug(f"{slot}_chosen", backend=backend.name, passed_over=reasons)
        return backend

    def choose(self, spec: Any) -> tuple[Any, list[str]]:
        """Return the class that serves the spec, or None, and the reasons against earlier ones."""
        passed_over: list[str] = []
        for provider in self._candidates:
            backend, reasons = self._judge(provider, spec)
            if not reasons:
                self._refuse_options_of_others(provider, passed_over)
                return backend, passed_over
            passed_over += [f"{provider.name}: {reason}" for reason in reasons]
        return None, passed_over

    def judge_all(self, spec: Any) -> dict[str, list[str]]:
        """Return the reasons against every candidate by name, in the order of preference.

        Unlike `choose`, this also imports candidates after the chosen one.
        """
        return {provider.name: self._judge(provider, spec)[1] for provider in self._candidates}

    def _judge(self, provider: Provider, spec: Any) -> tuple[Any, list[str]]:
        own = self._candidates[provider]
        try:
            backend = self._registry.build(provider.kind, provider.name, own, where=self._where)
            return backend, self._reasons(backend, spec, self._progress)
        except PluginError as error:
            return None, [str(error)]

    def _refuse_options_of_others(self, chosen: Provider, passed_over: Sequence[str]) -> None:
        others = [key for key in self._options if key not in self._candidates[chosen]]
        if others:
            reasons = f" ({'; '.join(passed_over)})" if passed_over else ""
            raise PluginError(
                f"{self._where} {others[0]}: 'auto' chose {chosen.name!r}{reasons}, which has no "
                "such option: remove the option, or name in `use` the backend that has it"
            )


def _refuse_unknown(
    options: Mapping[str, object], providers: Sequence[Provider], where: str
) -> None:
    known = dict.fromkeys(name for provider in providers for name in option_names(provider))
    for key in options:
        if key.replace("-", "_") not in known:
            names = ", ".join(provider.name for provider in providers)
            listed = f"Known options: {', '.join(known)}" if known else "They have no options"
            raise PluginError(
                f"{where} {key}: no backend of 'auto' ({names}) has such an option. "
                f"{listed}{did_you_mean(key, known) or '.'}"
            )


def option_names(provider: Provider) -> list[str]:
    """Return the names of the options that a backend takes, with underscores."""
    if provider.options is None:
        return []
    return [field.name for field in dataclasses.fields(provider.options) if field.init]


def options_of(provider: Provider, options: Mapping[str, object]) -> dict[str, object]:
    known = option_names(provider)
    return {key: value for key, value in options.items() if _field(key) in known}


def _field(key: str) -> str:
    return key.replace("-", "_")
