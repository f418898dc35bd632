"""Cost-aware preemption: swaps long contexts, recomputes short ones, and chooses the cheapest."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .preemption import CostAware, CostAwareOptions

    registry.offer(kinds.PREEMPTION_MODE, "cost-aware", CostAware, options=CostAwareOptions)
