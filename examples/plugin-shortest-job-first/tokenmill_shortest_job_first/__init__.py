"""Shortest job first: requests with the least work left go first, so most answers come sooner."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .scheduler import ShortestJobFirst, ShortestJobFirstOptions

    registry.offer(
        kinds.SCHEDULER, "shortest-job-first", ShortestJobFirst, options=ShortestJobFirstOptions
    )
