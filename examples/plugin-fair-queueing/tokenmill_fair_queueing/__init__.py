"""Weighted fair queueing: tenants share the engine by weight, whatever one of them sends."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .policy import FairQueueing, FairQueueingOptions

    registry.offer(
        kinds.SCHEDULING_POLICY, "fair-queueing", FairQueueing, options=FairQueueingOptions
    )
