"""Times a layer's attention on the device, with a KV cache that is not in the L2 cache.

Layers take turns, as in a model, each with its own KV cache. There are enough layers that their
caches together are several times the L2. On a GPU a graph of all layers is replayed, so that only
the kernels are timed, not their launches.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from kernel_contenders import Contender, Layer, Unable
from kernel_workloads import Workload

MOST_LAYERS = 512
L2_MULTIPLE = 4
MEMORY_PART = 0.7
"""Maximum fraction of the device's free memory that the caches use."""
MOST_REPLAYS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of one layer, in microseconds."""

    microseconds: float
    """The median."""
    least: float
    """The minimum."""
    method: str
    """graph, launches (no graph could be captured, so launches are included) or wall clock."""
    num_layers: int


def measure(
    contender: Contender,
    workload: Workload,
    dtype: torch.dtype,
    device: torch.device,
    seconds: float,
) -> Timing:
    """Time a workload for about `seconds`. Raises Unable, and the contender's exceptions."""
    num_layers = _count_layers(workload, dtype, device)
    try:
        with torch.inference_mode():
            layer = contender.prepare(workload, dtype, device, num_layers)
            time_layers = _time_on_gpu if device.type == "cuda" else _time_on_cpu
            return time_layers(layer, num_layers, seconds)
    finally:
        layer = None  # type: ignore[assignment]
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _count_layers(workload: Workload, dtype: torch.dtype, device: torch.device) -> int:
    """The number of layers whose caches fill the L2 several times. Raises Unable if the memory is
    too small for one."""
    own = workload.cache_bytes(dtype.itemsize)
    if device.type != "cuda":
        return 2
    free, _ = torch.cuda.mem_get_info(device)
    if own > free * MEMORY_PART:
        raise Unable(f"its cache of {own / 2**30:.0f} GiB does not fit into {free / 2**30:.0f} GiB")
    wanted = -(-L2_MULTIPLE * torch.cuda.get_device_properties(device).L2_cache_size // own)
    return max(1, min(wanted, MOST_LAYERS, int(free * MEMORY_PART / own)))


def _time_on_cpu(layer: Layer, num_layers: int, seconds: float) -> Timing:
    def turn() -> float:
        start = time.perf_counter()
        for index in range(num_layers):
            layer(index)
        return (time.perf_counter() - start) * 1e6 / num_layers

    turn()
    return _summarize(_repeat(turn, seconds), "wall clock", num_layers)


def _time_on_gpu(layer: Layer, num_layers: int, seconds: float) -> Timing:
    def all_layers() -> None:
        for index in range(num_layers):
            layer(index)

    layer(0)  # compiles kernels, loads libraries
    torch.cuda.synchronize()
    replay = _capture(all_layers)
    run, method = (all_layers, "launches") if replay is None else (replay, "graph")
    run()
    torch.cuda.synchronize()

    def turn() -> float:
        events = [_make_event() for _ in range(2)]
        events[0].record()
        run()
        events[1].record()
        events[1].synchronize()
        return float(events[0].elapsed_time(events[1])) * 1e3 / num_layers

    _warm_up(turn, seconds / 2)
    return _summarize(_repeat(turn, seconds), method, num_layers)


def _warm_up(turn: Callable[[], float], seconds: float) -> None:
    """Run until the device's clocks, which sink while it is idle, have risen again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        turn()


def _make_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _capture(run: Callable[[], None]) -> Callable[[], None] | None:
    """The replay function of a graph; None if the work cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()  # raises if the device is lost
        return None
    replay: Callable[[], None] = graph.replay
    return replay


def _repeat(turn: Callable[[], float], seconds: float) -> list[float]:
    """Time turns for `seconds`: at least 3, and at most MOST_REPLAYS."""
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < 3 or (time.monotonic() < end and len(times) < MOST_REPLAYS):
        times.append(turn())
    return times


def _summarize(times: list[float], method: str, num_layers: int) -> Timing:
    return Timing(
        microseconds=round(statistics.median(times), 3),
        least=round(min(times), 3),
        method=method,
        num_layers=num_layers,
    )
