"""The settings in --kv-events-config, with vLLM's keys, and the endpoints of each replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from ....plugin import ConfigError, Replica

_EXAMPLE = """'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'"""
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class KVEventsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of vLLM's KVEventsConfig. Only the default endpoint differs: it is on loopback."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    """None: "zmq" if the events are enabled."""
    endpoint: str = "tcp://127.0.0.1:5557"
    """The address at which batches are published."""
    replay_endpoint: str | None = None
    """The address at which consumers ask for batches that they missed; None: there is none."""
    buffer_steps: _Count = 10_000
    """Number of batches that are kept for them."""
    hwm: _Count = 100_000
    """Number of batches that wait for each consumer; further ones are dropped for it."""
    max_queue_size: _Count = 100_000
    """Number of batches that wait to be published; further ones are dropped."""
    topic: str = ""


def read_settings(
    given: str | Mapping[str, object] | None, replica: Replica
) -> KVEventsSettings | None:
    """The settings of a replica; None: no events. Raises ConfigError."""
    if given is None:
        return None
    try:
        if isinstance(given, str):
            settings = msgspec.json.decode(given, type=KVEventsSettings)
        else:
            settings = msgspec.convert(dict(given), KVEventsSettings)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(
            f"--kv-events-config: {error}, got {given!r}. Give JSON such as {_EXAMPLE}"
        ) from error
    if not settings.enable_kv_cache_events or settings.publisher == "null":
        return None
    _check_ports(settings, replica.count)
    replay = settings.replay_endpoint
    return msgspec.structs.replace(
        settings,
        endpoint=endpoint_of(settings.endpoint, replica.index),
        replay_endpoint=None if replay is None else endpoint_of(replay, replica.index),
    )


def endpoint_of(endpoint: str, replica: int) -> str:
    """The endpoint of a replica, as vLLM has it: its index is added to the port."""
    scheme, separator, rest = endpoint.partition("://")
    if scheme == "ipc" and rest:
        return f"{endpoint}_dp{replica}" if replica else endpoint
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not separator or not host or not port.isdecimal():
        raise ConfigError(
            f"--kv-events-config: {endpoint!r} is no endpoint; give tcp://ADDRESS:PORT, "
            "tcp://*:PORT or ipc://PATH"
        )
    return f"tcp://{host}:{int(port) + replica}"


def _check_ports(settings: KVEventsSettings, num_replicas: int) -> None:
    """Refuse ports that two replicas would share. Raises ConfigError."""
    if settings.replay_endpoint is None:
        return
    pairs = (settings.endpoint, settings.replay_endpoint)
    published, replayed = (
        {endpoint_of(one, i).rpartition(":")[2] for i in range(num_replicas)} for one in pairs
    )
    if shared := published & replayed:
        raise ConfigError(
            f"--kv-events-config: endpoint and replay_endpoint would both use {min(shared)}, "
            f"because each of {num_replicas} replicas adds its index to both ports; choose ports "
            f"that are at least {num_replicas} apart"
        )
