"""Offers the executor whose workers Ray starts, on one machine or on several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl
from .options import RayOptions

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import ExecutorProvider

TOKENMILL_API = (1, 1)


def make_ray(options: RayOptions) -> ExecutorProvider:
    """The provider that computes in actors of a Ray cluster."""
    from .provider import RayProvider

    return RayProvider(options)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.DISTRIBUTED_EXECUTOR_BACKEND, "ray", make_ray, options=RayOptions)
