"""The room on the nodes of a Ray cluster, and what a group of workers lacks there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The free resources of one node."""

    address: str
    free: Mapping[str, float]
    """Ray's names of resources, and how much of each. A name with nothing free may be missing."""

    def has(self, wanted: Mapping[str, float]) -> bool:
        return all(self.free.get(name, 0) >= number for name, number in wanted.items())

    def __str__(self) -> str:
        cpus, gpus, memory = (self.free.get(name, 0) for name in ("CPU", "GPU", "memory"))
        return f"{self.address} has {cpus:g} CPU, {gpus:g} GPU and {memory / GIB:.1f} GiB"


def find_room() -> list[Room]:
    """The free resources of each living node."""
    import ray
    from ray._private import state

    free = state.available_resources_per_node()
    return [
        Room(address=node["NodeManagerAddress"], free=free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]


def describe_lack(
    what: str, wanted: Mapping[str, float], placement: str, rooms: Sequence[Room]
) -> str:
    """Why there is no room. `what`: for example "2 stages". `wanted`: by each of them."""
    each = " and ".join(f"{number:g} {name}" for name, number in wanted.items())
    has = "" if any(room.has(wanted) for room in rooms) else f", and no single node has {each} free"
    return (
        f"the Ray cluster has no room for {what} with {each} each, placed by {placement}{has}. "
        f"Free: {'; '.join(map(str, rooms)) or 'nothing, because no node is alive'}"
    )
