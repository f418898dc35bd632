"""The contract of executors: providers of `distributed_executor_backend`, and what they get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...core.config import EngineConfig
from ...core.interfaces import Executor, Progress
from .identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    """The model to compute, and two ways to load it: in this process, or in a worker process."""

    config: EngineConfig
    progress: Progress
    load: Callable[[Progress], Executor]
    """Loads the model in this process, and returns an executor that computes it here.

    Raises ConfigError if the model cannot work, or if the configuration asks for several ranks."""
    load_rank: str
    """Name of a function that loads the part of one rank in another process, from the rank and the
    configuration: "package.module:function", a LoadRank of workers/worker.py."""
    identify: Callable[[], Identity]
    """Returns the properties that must be equal in all processes that compute the model."""
    refuse_too_large: Callable[[], None] = lambda: None
    """Raises ConfigError if all ranks together do not fit into this machine's memory."""
    objects: tuple[str, ...] = ()
    """Parts of the computation that the program passed in as objects. Only this process has them.
    Each is described for an error message."""


class ExecutorProvider(Protocol):
    """The class of an executor, or any object that is used like one.

    Both methods are called once per start, on the device thread.
    """

    def reasons_against(self, spec: ExecutorSpec) -> list[str]:
        """Return every reason why this executor cannot compute the model, for example flags that
        it does not implement, such as `config.pipeline_parallel_size`.

        Called before the weights are read. The start is refused if no executor is left.
        """
        ...

    def __call__(self, spec: ExecutorSpec) -> Executor:
        """Load the model. Raises ConfigError if the model cannot work."""
        ...
