"""The replicas that this process knows, from the routers in it.

It is a module of its own, because Serve copies the module of a router by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.serve.request_router import RequestRouter

_routers: dict[str, RequestRouter] = {}
"""The current router of each application."""


def note_router(router: RequestRouter) -> None:
    """Remember a router. Serve makes another one when the configuration changes."""
    _routers[router.app_name] = router


def siblings(name: str) -> set[str]:
    """The ids of all replicas of the application that has this one."""
    for router in list(_routers.values()):
        found = {one.unique_id for one in list(router.curr_replicas)}
        if name in found:
            return found
    return {name}
