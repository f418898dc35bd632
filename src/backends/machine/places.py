"""Divides a machine among replicas: CPU cores and main memory, or GPUs if there are any."""

from __future__ import annotations

import os
from pathlib import Path

from ...core.errors import ConfigError
from ...core.processes.place import WHOLE_MACHINE, Place
from .memory import SHARE, usable_memory
from .threads import count_usable_cores, divide_cores

THREADS = "OMP_NUM_THREADS"
GPUS = "CUDA_VISIBLE_DEVICES"
_DEVICE_FILES = "nvidia[0-9]*"


def place_replicas(number: int, device: str) -> tuple[Place, ...]:
    """A place for each replica: cores of its own, and a GPU of its own if `device` allows GPUs, or
    a share of the main memory.

    Raises ConfigError if there are too few.
    """
    if number == 1:
        return (WHOLE_MACHINE,)
    gpus = [] if device == "cpu" else visible_gpus()
    if gpus and number > len(gpus):
        raise ConfigError(
            f"--data-parallel-size is {number}, but the number of visible GPUs is {len(gpus)}: "
            "lower it, or give --device cpu"
        )
    shares = divide_cores(number)
    if shares is None:
        if not gpus:
            raise ConfigError(
                f"--data-parallel-size is {number}, but this process may use "
                f"{count_usable_cores()} CPU cores: lower it"
            )
        return tuple(Place(environment={GPUS: gpu}) for gpu in gpus[:number])
    share = {SHARE: str(usable_memory() // number)}
    return tuple(
        Place(
            cpus=cores.cpus,
            environment=_threads(cores.num_threads) | ({GPUS: gpus[index]} if gpus else share),
        )
        for index, cores in enumerate(shares)
    )


def visible_gpus() -> list[str]:
    """NVIDIA GPUs, named as in CUDA_VISIBLE_DEVICES. They are found without a CUDA library."""
    chosen = os.environ.get(GPUS)
    if chosen is None:
        return [str(i) for i, _ in enumerate(Path("/dev").glob(_DEVICE_FILES))]
    names = [name.strip() for name in chosen.split(",")]
    ends = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:ends]  # as CUDA does, ignore an invalid name and all names after it


def _threads(number: int) -> dict[str, str]:
    """The variable for a replica with this many cores; the user's OMP_NUM_THREADS is a maximum."""
    given = os.environ.get(THREADS, "")
    return {THREADS: str(min(number, int(given)) if given.isdecimal() and int(given) else number)}
