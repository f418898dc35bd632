"""The nodes of a Ray cluster, asked directly: Ray itself needs half a minute to miss one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `describe_silence` is used before Ray is imported
    from .link import ActorLink

ANSWER_SECONDS = 0.5
"""Time in which a node must accept a connection."""
WATCH_SECONDS = 1.0
"""Time between two looks at the head of the cluster."""
Address = tuple[str, int]
"""Host and port."""


def find_raylets(links: Iterable[ActorLink]) -> dict[str, Address]:
    """Ray's addresses on the nodes of workers, by node id."""
    import ray

    wanted = {link.node.node_id for link in links}
    return {
        node["NodeID"]: (node["NodeManagerAddress"], node["NodeManagerPort"])
        for node in ray.nodes()
        if node["NodeID"] in wanted
    }


def find_lost_node(
    links: Sequence[ActorLink], raylets: Mapping[str, Address], head: Address
) -> tuple[ActorLink, str] | None:
    """The first worker whose node is lost, and which node that is: "node 10.0.0.2 died (rank 1)".
    If only the head of the cluster is lost, the first worker and the head.

    None if Ray answers on all of them.
    """
    with ThreadPoolExecutor() as pool:
        ends = dict(zip(raylets, pool.map(describe_silence, raylets.values()), strict=True))
    for link in links:
        if end := ends.get(link.node.node_id):
            ranks = [str(one.rank) for one in links if one.node.node_id == link.node.node_id]
            return link, f"node {link.node.address} {end} (rank {', '.join(ranks)})"
    if end := describe_silence(head):
        return links[0], f"the head of the Ray cluster ({head[0]}:{head[1]}) {end}"
    return None


def find_head() -> Address:
    """The address of the cluster's head."""
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return host.strip("[]"), int(port)


def watch_head(head: Address, is_over: threading.Event, on_loss: Callable[[], object]) -> None:
    """Call `on_loss` when the head has failed to answer twice in a row.

    Ray itself would try for a minute, and then end this process.
    """
    num_silent = 0
    while not is_over.wait(WATCH_SECONDS) and num_silent < 2:
        num_silent = num_silent + 1 if describe_silence(head) else 0
    if num_silent >= 2:
        on_loss()


def describe_silence(address: Address, seconds: float = ANSWER_SECONDS) -> str | None:
    """The reason why a port accepts no connection; None if it accepts one."""
    try:
        socket.create_connection(address, seconds).close()
    except ConnectionRefusedError:
        return "died"
    except OSError:
        return "does not answer"
    return None
