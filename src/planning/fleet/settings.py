"""The replicas of a fleet, and the events of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...core.errors import ConfigError

MAX_REPLICAS = 1024
"""The maximum of --data-parallel-size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Replicas that die together: one, a node or a rack."""

    at: float
    """Seconds."""
    first: int
    last: int
    """Indexes of replicas, both included."""
    away: float = 0.0
    """Seconds until their machines are back, and start again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """A rule for the number of replicas: the current number times metric / target, rounded up.

    Kubernetes' HorizontalPodAutoscaler has this rule; Ray Serve's rule for requests is the same.
    """

    target: float
    """The wanted value of `metric` per replica."""
    metric: str = "requests"
    """"requests": open requests per replica. "kv": the used fraction of its KV cache."""
    lowest: int = 1
    highest: int = MAX_REPLICAS
    interval: float = 15.0
    """Seconds between two decisions."""
    patience: float = 300.0
    """Seconds in which all decisions must agree before replicas are removed."""
    tolerance: float = 0.1
    """Nothing changes while metric / target is nearer to 1 than this."""

    def __post_init__(self) -> None:
        if self.metric not in ("requests", "kv"):
            raise ConfigError(f"--autoscale must be requests=N or kv=N, got {self.metric!r}")
        if not 0 < self.target < math.inf or not self.interval > 0:
            raise ConfigError("the autoscaler's target and interval must be positive")
        if not 1 <= self.lowest <= self.highest <= MAX_REPLICAS:
            raise ConfigError(
                f"--min-replicas {self.lowest} and --max-replicas {self.highest} must be in order, "
                f"and in 1 to {MAX_REPLICAS}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The replicas, and the events of a run. Raises ConfigError for what cannot be."""

    num_replicas: int = 4
    """At the beginning, when all of them serve."""
    start_seconds: float = 60.0
    """From the start of a replica's machine to its first request."""
    detection_seconds: float = 0.1
    """From a replica's death until the router knows. Requests sent to it in this time wait."""
    losses: tuple[Loss, ...] = ()
    update_at: float | None = None
    """When a rolling update begins: each replica in turn drains, ends and starts again."""
    autoscaler: Autoscaler | None = None
    limits_ms: dict[str, float] = field(default_factory=dict)
    """A request counts as good if it keeps them: "ttft", "tpot" and "e2el", in milliseconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_replicas <= MAX_REPLICAS:
            raise ConfigError(f"--replicas must be in 1 to {MAX_REPLICAS}, got {self.num_replicas}")
        for name in ("start_seconds", "detection_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"--{name.replace('_', '-')} must not be negative")
        for loss in self.losses:
            if not 0 <= loss.first <= loss.last < MAX_REPLICAS or min(loss.at, loss.away) < 0:
                raise ConfigError(
                    f"--lose must name replicas from 0 in order and times from 0, got {loss}"
                )
            if self.autoscaler is None and loss.last >= self.num_replicas:
                raise ConfigError(
                    f"--lose names replica {loss.last}, but the fleet has only the replicas 0 to "
                    f"{self.num_replicas - 1}"
                )
