"""Events of the prefix cache for routers, in vLLM's format, if --kv-events-config asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....plugin import ConfigError, PluginContext, Registry, hookimpl, kinds
from .settings import read_settings

if TYPE_CHECKING:
    from .observer import KVEvents

TOKENMILL_API = (1, 1)


def make_kv_events(context: PluginContext) -> KVEvents | None:
    """Tells routers such as llm-d and Dynamo which KV blocks are cached, over ZeroMQ.

    Raises ConfigError for a wrong --kv-events-config, or if pyzmq is not installed.
    """
    settings = read_settings(context.config.kv_events_config, context.replica)
    if settings is None:
        return None
    try:
        from .observer import KVEvents
    except ImportError as error:
        raise ConfigError(
            f"--kv-events-config needs ZeroMQ ({error}): pip install pyzmq"
        ) from error
    return KVEvents(settings, context)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.OBSERVER, "kv-events", make_kv_events)
