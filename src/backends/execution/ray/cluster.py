"""Connects this process to a Ray cluster: a running one, or one that it starts for itself."""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError, UnavailableError
from ....core.log import get_logger
from ...machine.threads import count_usable_cores
from .nodes import describe_silence

OBJECT_STORE_BYTES = 80 << 20
"""Size of Ray's object store in a cluster of our own, about the minimum that Ray accepts. Only
plans and results of more than 100 kB go there."""
LOCAL_ENVIRONMENT = {
    # On Linux, Ray uses the address of a network interface, even if it is configured to use the
    # loopback one, and all of its processes listen there. "0" makes it use the loopback address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would send them to its makers
}
"""Set before Ray is imported for a cluster of our own."""
JOIN_SECONDS = 5.0
"""Time in which the cluster must accept a connection."""
LOOPBACK = "127.0.0.1"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
log = get_logger("ray")
Leave = Callable[[], None]
"""Disconnects from a cluster."""


@dataclass(slots=True)
class _Connection:
    """The connection that engines of this process have made: Ray allows one per process."""

    num_engines: int = 0
    leave: Leave = lambda: None


_connection = _Connection()
_lock = threading.Lock()


def starts_cluster(address: str | None) -> bool:
    """Whether the engine would start a cluster of this machine alone."""
    return not (address or os.environ.get("RAY_ADDRESS") or _is_connected())


def _is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def join_cluster(address: str | None, *, num_cpus: int, num_gpus: int) -> Leave:
    """Connect this process to the cluster at an address, or start one with these CPUs and GPUs.

    A program that has connected to a cluster itself stays there. Engines of one process share their
    connection, and the last one ends it. Raises ConfigError if the cluster cannot be joined.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if address and address.startswith("ray://"):
        raise ConfigError(
            f"the engine must run on a machine of the Ray cluster, not as a client ({address}): "
            "give HOST:PORT, or auto"
        )
    with _lock:
        if not _connection.num_engines:
            if _is_connected():
                return lambda: None
            _connection.leave = _connect(address, num_cpus, num_gpus)
        _connection.num_engines += 1
    return _leave


def _leave() -> None:
    with _lock:
        _connection.num_engines -= 1
        if not _connection.num_engines:
            _connection.leave()


def _connect(address: str | None, num_cpus: int, num_gpus: int) -> Leave:
    # Without this, a call after `ray.shutdown` would start another cluster. Ray reads it once.
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    if address is None:
        for name, value in LOCAL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        return _start_cluster(max(num_cpus, count_usable_cores()), num_gpus)
    _check_answers(address)
    import ray

    _init(address=address)
    log.info(
        "ray_cluster_joined", address=address, num_nodes=sum(one["Alive"] for one in ray.nodes())
    )
    return lambda: ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise UnavailableError if nothing accepts connections at HOST:PORT. Ray would try for
    minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return  # "auto": Ray looks the address up on this machine
    if not port.isdigit():
        raise ConfigError(f"the address of a Ray cluster must be HOST:PORT or auto, got {address}")
    if describe_silence((host.strip("[]"), int(port)), JOIN_SECONDS):
        raise UnavailableError(
            f"the Ray cluster cannot be joined: nothing answers at host {host}, port {port}"
        )


def _start_cluster(num_cpus: int, num_gpus: int) -> Leave:
    """Start a cluster of this machine, which ends with this process.

    The kernel ends Ray's processes with the thread that started them, so that thread runs until the
    engine leaves the cluster.
    """
    import ray

    if (own := ray.util.get_node_ip_address()) != LOOPBACK:
        raise ConfigError(
            f"Ray would listen on {own}, because the program imported ray before it started the "
            "engine: start the engine first, or give RAY_ADDRESS of a running cluster"
        )
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    started, is_over = Future[None](), threading.Event()

    def keep() -> None:
        try:
            _init(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
            )
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        is_over.wait()
        ray.shutdown()

    thread = threading.Thread(target=keep, name="tokenmill-ray", daemon=True)
    thread.start()
    started.result()
    log.info("ray_cluster_started", num_cpus=num_cpus)

    def leave() -> None:
        is_over.set()
        thread.join()

    return leave


def _init(**options: object) -> None:
    import ray
    from ray._private import worker

    # Ray's driver prints errors of the cluster in colours, even with log_to_driver=False.
    worker.print_to_stdstream = _log_errors
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(configure_logging=False, log_to_driver=False, **options)
    except ConnectionError as error:
        # `_check_answers` has found the port open.
        raise UnavailableError(
            f"the Ray cluster ({options['address']}) cannot be joined, although its port answers: "
            "set RAY_AUTH_MODE and RAY_AUTH_TOKEN to the values that the cluster has"
        ) from error
    except Exception as error:
        where = options["address"]
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"the Ray cluster ({where}) cannot be joined: {reason}") from error


def _log_errors(batch: Mapping[str, Any], **options: object) -> None:
    """Log messages that Ray would print."""
    for text in batch["lines"]:
        log.warning("ray_reported", text=" ".join(_COLOUR.sub("", text).split()))
