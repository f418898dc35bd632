"""`--attention-backend auto`: the first backend, in the order of preference, that can serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .backend_reasons import reasons_against
from .contract.provider_options import build_options
from .contract.registry import Provider, Registry
from .errors import PluginError
from .log import get_logger
from .suggest import did_you_mean

log = get_logger("plugins")


class AutoBackend:
    """Looks like a backend's class, and makes one of the first that can serve the spec.

    Each is imported only when it is asked, so that what is behind the first that can is never
    loaded. The backend that is taken gets the options.
    """

    name = "auto"
    kv_cache_dtypes = None
    """Those of the backend that is taken."""

    def __init__(
        self,
        registry: Registry,
        providers: Sequence[Provider],
        options: Mapping[str, object],
        where: str,
    ) -> None:
        """`where` is the table that the options come from.

        Raises PluginError for an option that no backend takes, and for a value that is wrong for
        one that does: the same on every machine, whichever backend that one takes.
        """
        self._registry = registry
        self._where = where
        self._candidates = {p: _options_of(p, options) for p in providers}
        self._options = options
        _refuse_unknown(options, providers, where)
        for provider, own in self._candidates.items():
            if own and provider.options is not None:
                build_options(provider.options, own, where=where, name=provider.name)

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
                reasons = reasons_against(backend, spec)
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
