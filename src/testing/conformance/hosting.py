"""Loads an object under test into a real plugin host, as an engine does."""

from __future__ import annotations

import copy
import functools
import inspect
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

from ...core.config import EngineConfig
from ...core.contract.events import PluginFailed
from ...core.contract.hookspecs import hookimpl
from ...core.contract.registry import Registry
from ...core.host.calling.guard import SLOW_SECONDS
from ...core.host.hook_checks import SLOT_HOOKS, implemented_hooks, new_manager
from ...core.host.plugin_host import PluginHost
from ...core.kinds import KINDS, ROUTER, SLOTS

SETTINGS = str(Path(__file__).with_name("plugins.toml"))
_NAME = "under-test"
_hosts: list[PluginHost] = []
"""Hosts that the running test has made."""
_HOOK_OF_SLOT = {slot: hook for hook, slot in SLOT_HOOKS.items()}


class UnderTest:
    """A plugin that registers a given object as the provider of a slot."""

    def __init__(self, slot: str, provider: object) -> None:
        self._slot = slot
        self._provider = provider

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(KINDS[self._slot], _NAME, lambda: self._provider)


class FailureWatch:
    """Records every failure of a plugin that the engine had to handle."""

    def __init__(self) -> None:
        self.events: list[PluginFailed] = []

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self.events.append(event)

    def describe(self, *hooks: str) -> str:
        """The failures in these hooks, or in all hooks, one per line; empty if there are none."""
        found = {(e.hook, e.error): e.count for e in self.events if not hooks or e.hook in hooks}
        return "\n".join(f"{hook}: {error} ({n} times)" for (hook, error), n in found.items())


Listening = Generator[None, object, object]


def listen(report: Callable[[object, Exception | None, float], None]) -> Listening:
    """The body of a wrapper: it reports a call's answer, its exception if any, and its seconds."""
    value, caught = None, None
    started = time.perf_counter()
    try:
        value = yield
        return value
    except Exception as error:
        caught = error
        raise
    finally:
        report(value, caught, time.perf_counter() - started)


def fresh(given: object) -> object:
    """A provider for one engine: made by the fixture's function, or a copy of its object.

    Raises TypeError, with advice, for an object that cannot be copied.
    """
    if _is_factory(given):
        return take(given)
    try:
        return copy.deepcopy(given)
    except Exception as error:
        raise TypeError(
            f"every check needs its own copy of {given!r}, which cannot be copied ({error}): "
            "let the fixture return a function that makes one"
        ) from error


def take(given: object) -> object:
    """The fixture's object, or the object that the fixture's function makes."""
    return given() if callable(given) and _is_factory(given) else given


def take_slow_hooks() -> list[str]:
    """The tested hooks that were slow since the last call of this function, one line for each."""
    found: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for host in _hosts:
        own = {info.name for info in host.plugins() if info.distribution == "-"}
        for stats in host.hook_stats():
            if stats.plugin in own:
                found[stats.hook] += stats.slow
                calls[stats.hook] += stats.calls
    _hosts.clear()
    return [
        f"{hook!r} took more than {SLOW_SECONDS * 1000:.0f} ms in {slow} of {calls[hook]} calls"
        for hook, slow in found.items()
        if slow
    ]


def load_host(kind: str, provider: object, *others: object) -> PluginHost:
    """A plugin host with `provider` in its slot, or in addition to the defaults.

    `kind` is one of the registry's kinds. A wrapper around a slot's hook wraps the default
    provider. Raises PluginError, with one line, if an engine would refuse the provider.
    """
    slot = _slot_of(kind, provider)
    chosen: dict[str, object] = {} if slot is None else {slot: _NAME}
    if slot == ROUTER.name:  # engines without replicas refuse it
        chosen["data_parallel_size"] = 2
    config = EngineConfig.from_options(plugins_file=SETTINGS, **chosen)
    plugin = provider if slot is None else UnderTest(slot, provider)
    host = PluginHost.load(config, extra=[plugin, *others])
    _hosts.append(host)
    return host


def wraps(plugin: object, hook: str) -> bool:
    """Whether the object's hook is a wrapper, which changes the decision of another provider."""
    options = new_manager().parse_hookimpl_opts(plugin, hook)
    return options is not None and options["wrapper"]


def _slot_of(kind: str, provider: object) -> str | None:
    if kind in SLOTS and not (kind in _HOOK_OF_SLOT and wraps(provider, _HOOK_OF_SLOT[kind])):
        return kind
    decided = [
        hook for hook in implemented_hooks(new_manager(), provider) if not wraps(provider, hook)
    ]
    return next((SLOT_HOOKS[hook] for hook in decided if hook in SLOT_HOOKS), None)


def _is_factory(given: object) -> bool:
    return (
        inspect.isclass(given) or inspect.isfunction(given) or isinstance(given, functools.partial)
    )
