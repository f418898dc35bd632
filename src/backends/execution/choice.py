"""Chooses and makes the executor of an engine, for the slot `distributed_executor_backend`."""

from __future__ import annotations

from ...core.errors import ConfigError
from ...core.interfaces import Executor
from ..choosing.auto import Plugins, options_of
from .base import ExecutorProvider, ExecutorSpec


def make_executor(plugins: Plugins, spec: ExecutorSpec) -> Executor:
    """Make the first chosen executor that can compute the model.

    Raises ConfigError with all reasons if none can.
    """
    name, provider = choose_executor(plugins, spec)
    executor = provider(spec)
    missing = [one for one in ("info", "launch", "health", "close") if not hasattr(executor, one)]
    if missing:
        raise TypeError(f"executor {name!r} lacks {' and '.join(missing)}: got {executor!r:.100}")
    return executor


def choose_executor(plugins: Plugins, spec: ExecutorSpec) -> tuple[str, ExecutorProvider]:
    """Return the name and the provider of the first chosen executor that can compute the model.

    Raises ConfigError with all reasons if none can.
    """
    choice, passed_over = plugins.choice("distributed_executor_backend"), []
    for provider in (choice.provider, *choice.others):
        options = options_of(provider, choice.options) if choice.others else choice.options
        made: ExecutorProvider = plugins.registry.build(
            provider.kind, provider.name, options, where=choice.origin
        )
        reasons = made.reasons_against(spec)
        if not reasons:
            return provider.name, made
        passed_over += [f"{provider.name}: {reason}" for reason in reasons]
    raise ConfigError(f"no executor supports this configuration: {'; '.join(passed_over)}")
