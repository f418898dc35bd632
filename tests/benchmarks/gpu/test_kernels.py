"""What is timed, and that the timing of every contender that a CPU can compute works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import kernel_timing
import pytest
import torch
from kernel_contenders import CONTENDERS, Unable
from kernel_timing import measure
from kernel_workloads import EIGHT_B, FULL, MINIATURE, Workload

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["torch", "torch-sdpa"])
@pytest.mark.parametrize("workload", MINIATURE, ids=lambda w: w.name)
def test_times_each_workload(name: str, workload: Workload) -> None:
    timing = measure(CONTENDERS[name](), workload, torch.float32, CPU, seconds=0.0)
    assert 0 < timing.least <= timing.microseconds
    assert timing.method == "wall clock"


def test_a_peer_that_is_not_here_says_why() -> None:
    with pytest.raises(Unable, match="NVIDIA"):
        measure(CONTENDERS["flash-kernel-16"](), MINIATURE[0], torch.bfloat16, CPU, seconds=0.0)


def test_bytes_and_operations_are_those_that_cannot_be_spared() -> None:
    decode = Workload(name="", heads=EIGHT_B, num_decodes=2, decode_len=100)
    assert decode.cache_bytes(2) == 2 * 2 * 100 * 8 * 128 * 2
    assert decode.moved_bytes(2) == decode.cache_bytes(2) + 2 * 2 * (32 + 8) * 128 * 2
    prompt = Workload(name="", heads=EIGHT_B, num_chunks=1, chunk_queries=3, chunk_len=5)
    assert prompt.operations() == 4 * (3 + 4 + 5) * 32 * 128


def test_workloads_have_names_of_their_own() -> None:
    names = [(w.heads.name, w.name) for w in FULL]
    assert len(set(names)) == len(names)


def test_a_batch_has_blocks_of_its_own_for_each_sequence() -> None:
    workload = Workload(
        name="",
        heads=EIGHT_B,
        num_decodes=3,
        decode_len=33,
        num_chunks=1,
        chunk_queries=8,
        chunk_len=20,
    )
    batch = workload.batch(16, CPU)
    assert batch.seq_lens.tolist() == [33, 33, 33, 20]
    assert batch.query_start_loc.tolist() == [0, 1, 2, 3, 11]
    used = [*batch.block_tables_bm[:3].flatten().tolist(), *batch.block_tables_bm[3, :2].tolist()]
    assert sorted(used) == list(range(workload.num_blocks(16)))
    assert len(batch.slot_mapping_t) == 11


class Event:
    """Two milliseconds pass between any two."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 2.0


class Graph:
    """Counts its replays."""

    replays = 0

    def replay(self) -> None:
        Graph.replays += 1


@pytest.mark.parametrize(("can_capture", "method"), [(True, "graph"), (False, "launches")])
def test_on_a_gpu_graphs_are_timed_or_else_launches(
    can_capture: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        yield
        if not can_capture:
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(Graph, "replays", 0)
    layers: list[int] = []
    timing = kernel_timing._time_on_gpu(layers.append, 4, seconds=0.0)
    assert timing.method == method and timing.microseconds == 500.0
    assert layers[:5] == [0, 0, 1, 2, 3]  # warm-up, then the capture
    assert (Graph.replays > 0) is can_capture
