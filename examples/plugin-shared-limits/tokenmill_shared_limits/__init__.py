"""Shared limits: the quotas of API keys hold for all servers together."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


@hookimpl
def register(registry: Registry) -> None:
    from .admission import SharedLimits
    from .options import SharedLimitsOptions

    registry.offer(kinds.ADMISSION, "shared-limits", SharedLimits, options=SharedLimitsOptions)
