"""Turns the configured grammar backend into the engine's grammars and the checker of new ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...core.contract.registry import Provider
from ...core.log import get_logger
from ..choosing.auto import Plugins, options_of
from ..choosing.importable import factory_name, options_name
from .base import GrammarSpec
from .checking import GrammarChecker
from .grammars import Grammars
from .worker import WorkerStart

log = get_logger("grammar")


def make_grammars(plugins: Plugins, spec: GrammarSpec) -> tuple[Grammars, GrammarChecker] | None:
    """The first chosen backend that can serve these tokens.

    None if no backend can: the engine then refuses requests with a grammar. Raises PluginError for
    wrong options.
    """
    choice, passed_over = plugins.choice("grammar_backend"), []
    for provider in (choice.provider, *choice.others):
        options = options_of(provider, choice.options) if choice.others else choice.options
        backend = plugins.registry.build(provider.kind, provider.name, options, where=choice.origin)
        reasons = backend.reasons_against(spec)
        if not reasons:
            grammars = Grammars(partial(backend, spec))
            return grammars, GrammarChecker(_describe(provider, options, spec), grammars)
        passed_over += [f"{provider.name}: {reason}" for reason in reasons]
    log.warning("no_grammar_backend", passed_over=passed_over)
    return None


def _describe(provider: Provider, options: Mapping[str, Any], spec: GrammarSpec) -> WorkerStart:
    return WorkerStart(
        factory=factory_name(provider),
        options=dict(options),
        options_type=options_name(provider),
        spec=spec,
    )
