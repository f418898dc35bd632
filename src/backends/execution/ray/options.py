"""Options of the Ray executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from ....core.contract.provider_options import NAMED_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The cluster, and the resources that Ray reserves there for the workers."""

    address: str | None = field(
        default=None,
        metadata={
            "help": "HOST:PORT of a running Ray cluster, or auto for the one on this machine; "
            "default: the environment variable RAY_ADDRESS; without it, the engine starts Ray on "
            "this machine, for itself. Only a file of --plugins-file may set it",
            NAMED_ONLY: True,
        },
    )
    cpus_per_worker: Annotated[int, Meta(ge=1)] | None = field(
        default=None,
        metadata={
            "help": "CPUs that Ray reserves for each worker, and the number of its threads; "
            "default: 1 is reserved, and the workers of a node use all of its cores"
        },
    )
    placement: Literal["STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"] | None = field(
        default=None,
        metadata={
            "help": "on which nodes Ray places the workers: STRICT_PACK (all on one), PACK (on "
            "few), SPREAD (on many), STRICT_SPREAD (each on its own). With several stages, it "
            "places stages, and all workers of a stage are on one node. Default: STRICT_PACK, "
            "because ranks wait for each other in every layer; with several stages SPREAD"
        },
    )
    placement_timeout: Annotated[float, Meta(gt=0)] = field(
        default=60.0,
        metadata={
            "help": "seconds to wait for room for the workers; a cluster that adds machines by "
            "itself needs minutes"
        },
    )
