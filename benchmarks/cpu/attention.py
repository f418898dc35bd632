"""Times the attention of one layer: the native kernels and torch operations, in turns.

python benchmarks/cpu/attention.py --help

Each row is a step: a batch of sequences over a paged cache with blocks in random order. Both
backends write the step's keys and values and attend, through the same interface. The minimum time
of all rounds counts: it shows what an otherwise idle machine can do. One layer's KV cache mostly
stays in the processor's caches. With `--layers 30` the layers take turns, as in a model, and long
contexts are read from memory, at the rate in GB/s.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tokenmill.backends.attention.base import AttentionBackend, AttentionBatch, AttentionSpec
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.native.library import load_library

sys.path.append(str(Path(__file__).parents[1]))
from recording import make_parser, record

BLOCK_SIZE = 16
SECONDS_PER_ROUND = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The sequences of one step. `seq_len` includes the queries."""

    name: str
    num_seqs: int
    num_queries: int
    seq_len: int


WORKLOADS = (
    Workload(name="decode 1 x 256", num_seqs=1, num_queries=1, seq_len=256),
    Workload(name="decode 8 x 256", num_seqs=8, num_queries=1, seq_len=256),
    Workload(name="decode 32 x 256", num_seqs=32, num_queries=1, seq_len=256),
    Workload(name="decode 32 x 1024", num_seqs=32, num_queries=1, seq_len=1024),
    Workload(name="decode 1 x 4096", num_seqs=1, num_queries=1, seq_len=4096),
    Workload(name="prefill 512", num_seqs=1, num_queries=512, seq_len=512),
    Workload(name="256 after 1792", num_seqs=1, num_queries=256, seq_len=2048),
)


def make_batch(workload: Workload) -> AttentionBatch:
    """The layout of a workload, with blocks in random order."""
    per_seq = -(-workload.seq_len // BLOCK_SIZE)
    tables_bm = torch.randperm(workload.num_seqs * per_seq).view(workload.num_seqs, per_seq)
    positions = torch.arange(workload.seq_len - workload.num_queries, workload.seq_len)
    slots_bq = tables_bm[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    starts = torch.arange(workload.num_seqs + 1) * workload.num_queries
    return AttentionBatch(
        query_start_loc=starts.int(),
        seq_lens=torch.full((workload.num_seqs,), workload.seq_len).int(),
        block_tables_bm=tables_bm.int(),
        slot_mapping_t=slots_bq.flatten(),
        query_lens_host=[workload.num_queries] * workload.num_seqs,
        seq_lens_host=[workload.seq_len] * workload.num_seqs,
        num_decodes=workload.num_seqs if workload.num_queries == 1 else 0,
    )


def make_step(
    backend: AttentionBackend, spec: AttentionSpec, workload: Workload, num_layers: int
) -> Callable[[], None]:
    """A function that computes the step in all layers."""
    batch = make_batch(workload)
    num_blocks = workload.num_seqs * batch.block_tables_bm.shape[1]
    shape = backend.kv_cache_shape(num_blocks)
    caches = [torch.randn(shape).to(spec.dtype) for _ in range(num_layers)]
    num_tokens = workload.num_seqs * workload.num_queries
    num_rotated = spec.num_heads + spec.num_kv_heads
    qkv = torch.randn(num_tokens, num_rotated + spec.num_kv_heads, spec.head_size).to(spec.dtype)
    q_thd, k_tkd = qkv[:, : spec.num_heads], qkv[:, spec.num_heads : num_rotated]
    v_tkd = qkv[:, num_rotated:]
    out_thd = torch.empty(num_tokens, spec.num_heads, spec.head_size, dtype=spec.dtype)
    metadata = backend.build_metadata(batch)

    def run() -> None:
        for layer, cache in enumerate(caches):
            backend.forward(layer, q_thd, k_tkd, v_tkd, cache, metadata, out_thd)

    return run


def measure(run: Callable[[], None]) -> float:
    """The minimum seconds of a few calls in a row."""
    least = float("inf")
    end = time.perf_counter() + SECONDS_PER_ROUND
    while (now := time.perf_counter()) < end:
        run()
        least = min(least, time.perf_counter() - now)
    return least


def compare(
    spec: AttentionSpec, workload: Workload, num_layers: int, rounds: int
) -> dict[str, float]:
    """Microseconds per layer of both backends, their ratio, and the rate of memory reads."""
    backends: Sequence[AttentionBackend] = (CPUAttention(spec), TorchAttention(spec))
    steps = {b.name: make_step(b, spec, workload, num_layers) for b in backends}
    least = dict.fromkeys(steps, float("inf"))
    with torch.inference_mode():
        for _ in range(rounds):
            for name, run in steps.items():
                least[name] = min(least[name], measure(run) / num_layers)
    figures = {
        "cpu_us": round(least["cpu"] * 1e6, 1),
        "torch_us": round(least["torch"] * 1e6, 1),
        "ratio": round(least["torch"] / least["cpu"], 1),
    }
    if workload.num_queries == 1:  # each key and value is read once
        tokens = workload.num_seqs * workload.seq_len
        read = 2 * tokens * spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
        figures["gb_per_s"] = round(read / least["cpu"] / 1e9, 1)
    return figures


def parse_flags() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, help="threads of both sides; None: one per core")
    parser.add_argument("--layers", type=int, default=1, help="layers, each with its own cache")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each side")
    parser.add_argument("--num-heads", type=int, default=9)
    parser.add_argument("--num-kv-heads", type=int, default=3)
    parser.add_argument("--head-size", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    args = parse_flags()
    torch.manual_seed(args.seed)
    library = load_library()
    library.set_threads(args.threads)
    torch.set_num_threads(library.num_threads)
    spec = AttentionSpec(
        num_heads=args.num_heads,
        num_kv_heads=args.num_kv_heads,
        head_size=args.head_size,
        block_size=BLOCK_SIZE,
        dtype=getattr(torch, args.dtype),
        device=torch.device("cpu"),
        scale=args.head_size**-0.5,
    )
    console = Console()
    figures = {
        workload.name: compare(spec, workload, args.layers, args.rounds)
        for workload in track(WORKLOADS, "measuring", console=console, transient=True)
    }
    title = f"{args.dtype}, {library.num_threads} threads, {library.instruction_set}, per layer"
    table = Table("step", "native µs", "torch µs", "times faster", "GB/s", title=title)
    for name, row in figures.items():
        table.add_row(name, *map(str, row.values()))
    console.print(table)
    record(args, "cpu attention", {"instruction_set": library.instruction_set, "steps": figures})


if __name__ == "__main__":
    main()
