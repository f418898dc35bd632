"""Cost-aware preemption: swaps long contexts, recomputes short ones, and chooses the cheapest."""

from tokenmill.plugin import Registry, hookimpl

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .preemption import CostAware, CostAwareOptions

    registry.preemption_mode("cost-aware", CostAware, options=CostAwareOptions)
