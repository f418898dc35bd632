"""The executors as providers of the slot `distributed_executor_backend`."""

from __future__ import annotations

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import Executor
from ..machine.cpu_binding import AUTO
from .base import ExecutorSpec
from .workers.division import describe_sizes, reasons_against_gpus, warn_of_few_cores
from .workers.executor import MultiProcess


class InProcessProvider:
    """Computes in the engine's process."""

    def reasons_against(self, spec: ExecutorSpec) -> list[str]:
        """A reason if there are several ranks, or CPUs to bind them to: each needs a process."""
        return _reasons_against_one_process(spec.config)

    def __call__(self, spec: ExecutorSpec) -> Executor:
        """Load the model."""
        return spec.load(spec.progress)


def refuse_one_process(config: EngineConfig) -> None:
    """Raise ConfigError if this process cannot compute the whole model as configured."""
    if reasons := _reasons_against_one_process(config):
        raise ConfigError("; ".join(reasons))


def _reasons_against_one_process(config: EngineConfig) -> list[str]:
    flags = [describe_sizes(config)] if config.num_ranks > 1 else []
    if config.cpu_bind != AUTO:
        flags.append("--cpu-bind")
    remedy = "give --distributed-executor-backend multiprocess"
    return [f"{flag} needs worker processes: {remedy}" for flag in flags]


class MultiProcessProvider:
    """Computes in worker processes."""

    def reasons_against(self, spec: ExecutorSpec) -> list[str]:
        """A reason for each plugin that is an object of the program, because another process cannot
        rebuild it by name, and a reason if there are fewer GPUs than ranks."""
        reasons = [f"a worker process cannot rebuild {one}" for one in spec.objects]
        return [*reasons, *reasons_against_gpus(spec.config)]

    def __call__(self, spec: ExecutorSpec) -> Executor:
        """Start the workers, which load the model. Raises ConfigError if they do not fit into the
        memory together."""
        spec.refuse_too_large()
        warn_of_few_cores(spec.config)
        return MultiProcess.start(spec)
