"""Builds the chosen router, and contains its failures. This happens in the server's process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config import EngineConfig
from ..contract.plugin_info import HookStats, PluginInfo, Source
from ..contract.providers.routing import ReplicaView, RoutedRequest, Router, least_loaded
from ..errors import PluginError
from ..kinds import ROUTER
from .calling.failure_log import FailureLog
from .calling.guard import DECIDES, FAILED, Guard
from .choice import choose_slot
from .plugin_set import enabled_plugins

SLOT = ROUTER.name


class GuardedRouter:
    """A router that never raises, and always chooses one of the replicas that serve.

    If the router behind it fails, the replica with the fewest requests is chosen.
    """

    def __init__(self, router: Router, source: Source) -> None:
        rule = replace(DECIDES, instead="the replica with the fewest requests is chosen")
        self._log = FailureLog(lambda event: None)  # observers are in the engines' processes
        self._router = router
        self._route = Guard(self._checked, source, "router.route", rule, self._log)
        self._forget = Guard(router.forget, source, "router.forget", rule, self._log)
        self.guards = (self._route, self._forget)

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int:
        """The index of one of `replicas`."""
        answer = FAILED if self._is_out else self._route(request, replicas)
        return answer if isinstance(answer, int) else least_loaded(replicas)

    def forget(self, index: int) -> None:
        """Report to the router that a replica was lost."""
        if not self._is_out:
            self._forget(index)

    def hook_stats(self) -> tuple[HookStats, ...]:
        return tuple(guard.stats for guard in self.guards)

    def with_failures(self, infos: Sequence[PluginInfo]) -> tuple[PluginInfo, ...]:
        """The plugins, with the failures of the router added."""
        return tuple(map(self._log.with_failures, infos))

    @property
    def _is_out(self) -> bool:
        return self._route.is_out or self._forget.is_out

    def _checked(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int:
        chosen = self._router.route(request, replicas)
        known = [replica.index for replica in replicas]
        if type(chosen) is not int or chosen not in known:
            raise PluginError(f"'route' must return one of {known}, got {chosen!r}")
        return chosen


def build_router(config: EngineConfig) -> GuardedRouter:
    """Build the chosen router. Raises PluginError or ConfigError with a one-line message."""
    plugins = enabled_plugins(config)
    choice = choose_slot(SLOT, config, plugins)
    provider = choice.provider
    router = plugins.registry.build(SLOT, provider.name, choice.options, where=choice.origin)
    return GuardedRouter(router, provider.source)
