"""Offers the executors: they decide in which process steps are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import kinds
from ...core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ...core.contract.registry import Registry
    from .base import ExecutorProvider

TOKENMILL_API = (1, 1)


def make_in_process() -> ExecutorProvider:
    """The provider that computes in the engine's process, on a thread of its own."""
    from .providers import InProcessProvider

    return InProcessProvider()


def make_multi_process() -> ExecutorProvider:
    """The provider that computes in worker processes."""
    from .providers import MultiProcessProvider

    return MultiProcessProvider()


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(
        kinds.DISTRIBUTED_EXECUTOR_BACKEND, "inprocess", make_in_process, aliases=("uni",)
    )
    registry.offer(
        kinds.DISTRIBUTED_EXECUTOR_BACKEND, "multiprocess", make_multi_process, aliases=("mp",)
    )
