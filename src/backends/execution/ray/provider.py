"""The Ray executor as a provider of the slot `distributed_executor_backend`."""

from __future__ import annotations

import importlib.util

from ....core.interfaces import Executor
from ...machine.cpu_binding import AUTO
from ...machine.device import choose_device
from ..base import ExecutorSpec
from ..workers.division import reasons_against_gpus
from .cluster import join_cluster, starts_cluster
from .options import RayOptions


class RayProvider:
    """Computes in actors of a Ray cluster."""

    def __init__(self, options: RayOptions) -> None:
        self._options = options

    def reasons_against(self, spec: ExecutorSpec) -> list[str]:
        """Reasons: Ray is missing, an actor cannot rebuild an object, a flag has no effect with
        Ray, or a cluster of this machine alone lacks GPUs."""
        reasons = [f"a Ray actor cannot rebuild {one}" for one in spec.objects]
        if importlib.util.find_spec("ray") is None:
            reasons.append("the package ray is missing: pip install 'ray>=2.60,<3'")
        if spec.config.cpu_bind != AUTO:
            reasons.append("--cpu-bind has no effect with Ray: remove it, and set cpus_per_worker")
        if starts_cluster(self._options.address):
            reasons += reasons_against_gpus(spec.config)
        return reasons

    def __call__(self, spec: ExecutorSpec) -> Executor:
        """Place the workers, which load the model."""
        size = spec.config.num_ranks
        num_gpus = int(choose_device(spec.config.device).type == "cuda")
        leave = join_cluster(
            self._options.address,
            num_cpus=size * (self._options.cpus_per_worker or 1),
            num_gpus=size * num_gpus,
        )
        # Only now: `join_cluster` sets variables that Ray reads when it is imported.
        from .executor import RayExecutor

        return RayExecutor.start(spec, self._options, num_gpus, leave)
