"""An observer of failures, for the tests of the host."""

from __future__ import annotations

from tokenmill.core.contract.events import PluginFailed
from tokenmill.core.contract.hookspecs import hookimpl


class Failures:
    """Keeps the failures of plugins that the engine reports."""

    def __init__(self) -> None:
        self.seen: list[PluginFailed] = []

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self.seen.append(event)
