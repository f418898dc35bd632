"""Cost-aware preemption: long contexts are swapped, short ones recomputed, the cheapest goes."""

from tokenmill.plugin import Registry, hookimpl

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .preemption import CostAware, CostAwareOptions

    registry.preemption_mode("cost-aware", CostAware, options=CostAwareOptions)
