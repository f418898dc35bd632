"""Offers the executors: they decide in which process steps are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    registry.distributed_executor_backend("inprocess", make_in_process, aliases=("uni",))
    registry.distributed_executor_backend("multiprocess", make_multi_process, aliases=("mp",))
