"""Divides a machine among replicas and ranks: CPU cores, main memory, and GPUs if there are any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import ConfigError
from ...core.processes.place import WHOLE_MACHINE, Place
from .memory import SHARE, usable_memory
from .threads import count_usable_cores, divide_cores

THREADS = "OMP_NUM_THREADS"
GPUS = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILES = "nvidia[0-9]*"


def place_replicas(number: int, device: str, num_ranks: int = 1) -> tuple[Place, ...]:
    """A place for each replica: cores of its own, and a GPU of its own for each of its ranks if
    `device` allows GPUs, or a share of the main memory.

    Raises ConfigError if there are too few.
    """
    if number == 1:
        return (WHOLE_MACHINE,)
    gpus = [] if device == "cpu" else _divide_gpus(number, num_ranks)
    shares = divide_cores(number)
    if shares is None:
        if not gpus:
            raise ConfigError(
                f"--data-parallel-size is {number}, but this process may use "
                f"{count_usable_cores()} CPU cores: lower it"
            )
        return tuple(Place(environment=own) for own in gpus)
    share = {SHARE: str(usable_memory() // number)}
    return tuple(
        Place(
            cpus=cores.cpus,
            environment=_threads(cores.num_threads) | (gpus[index] if gpus else share),
        )
        for index, cores in enumerate(shares)
    )


def place_ranks(gpus: Sequence[str]) -> tuple[Place, ...]:
    """A place for each rank of an engine, with one of these GPUs. To a rank it is the only GPU, so
    that no code of it can use another one."""
    return tuple(Place(environment={GPUS: gpu}) for gpu in gpus)


def visible_gpus() -> list[str]:
    """NVIDIA GPUs, named as in CUDA_VISIBLE_DEVICES. They are found without a CUDA library."""
    chosen = os.environ.get(GPUS)
    if chosen is None:
        return [str(i) for i, _ in enumerate(Path("/dev").glob(_DEVICE_FILES))]
    names = [name.strip() for name in chosen.split(",")]
    ends = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:ends]  # as CUDA does, ignore an invalid name and all names after it


def _divide_gpus(number: int, num_ranks: int) -> list[dict[str, str]]:
    """The variable for each replica; empty if there are no GPUs."""
    gpus = visible_gpus()
    if gpus and number * num_ranks > len(gpus):
        ranks = f" with {num_ranks} ranks each" if num_ranks > 1 else ""
        raise ConfigError(
            f"--data-parallel-size is {number}{ranks}, but the number of visible GPUs is "
            f"{len(gpus)}: lower it, or give --device cpu"
        )
    starts = range(0, number * num_ranks, num_ranks) if gpus else ()
    return [{GPUS: ",".join(gpus[start : start + num_ranks])} for start in starts]


def _threads(number: int) -> dict[str, str]:
    """The variable for a replica with this many cores; the user's OMP_NUM_THREADS is a maximum."""
    given = os.environ.get(THREADS, "")
    return {THREADS: str(min(number, int(given)) if given.isdecimal() and int(given) else number)}
