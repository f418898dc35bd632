"""Times the products with all weight matrices of a model: native packed weights, and torch.

python benchmarks/cpu/linears.py --help

The shapes are those of SmolLM2-135M: 30 layers of qkv, output, gate-up and down, and the matrix of
the logits (269 MB in bfloat16). The weights are random. A round multiplies rows with all matrices,
which is the minimum work of a forward pass with that many tokens. Each product is a call from
Python, which takes one microsecond more than inside a decoder, on both sides. Both sides take
turns. The minimum time of all rounds counts: it shows what an otherwise idle machine can do.
`others` is the fraction of the CPUs that other processes used meanwhile: do not trust a row with
more than about 5 %.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import psutil
import torch
from rich.console import Console
from torch import Tensor

from tokenmill.backends.cpu.library import Library, load_library
from tokenmill.backends.cpu.packed_weights import (
    PackedLinear,
    WeightArena,
    make_linear_call,
    pack_gguf,
    pack_linear,
)
from tokenmill.backends.weights.formats.gguf_blocks import gguf_weights

sys.path.append(str(Path(__file__).parents[1]))
from recording import make_parser, make_table, record

HIDDEN, INTERMEDIATE, QKV, LAYERS, VOCABULARY = 576, 1536, 960, 30, 49152
ROUNDS_IN_TURN = 3
SETTLE_SECONDS = 0.02
"""Pause between the sides: OpenMP's threads spin for milliseconds after torch's last product."""
FORMATS = ("bfloat16", "Q4_0", "Q4_1", "Q8_0")


def make_torch_weights() -> list[Tensor]:
    """The matrices in the order of a forward pass, as torch stores them."""
    shapes = [(QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)]
    shapes = shapes * LAYERS + [(VOCABULARY, HIDDEN)]
    return [(torch.randn(shape) * 0.02).to(torch.bfloat16) for shape in shapes]


def pack_all(weights: Sequence[Tensor], format: str) -> list[PackedLinear]:
    """Pack the weights. The matrix with 2 x INTERMEDIATE rows is gate and up."""
    arena = WeightArena()
    packed = []
    for weight in weights:
        gate, up = weight, None
        if len(weight) == 2 * INTERMEDIATE:
            gate, up = weight[:INTERMEDIATE], weight[INTERMEDIATE:]
        if format == "bfloat16":
            packed.append(pack_linear(gate, up=up, arena=arena))
            continue
        # As in published files, the matrix that is also the embedding has eight bits.
        kind = gguf.GGMLQuantizationType["Q8_0" if len(weight) == VOCABULARY else format]
        raw = [
            gguf_weights(kind, torch.from_numpy(gguf.quantize(part.float().numpy(), kind)))
            for part in (gate, up)
            if part is not None
        ]
        packed.append(pack_gguf(raw[0], up=raw[1] if up is not None else None, arena=arena))
    return packed


def make_inputs(rows: int) -> dict[int, Tensor]:
    """Random inputs by width."""
    return {width: torch.randn(rows, width).bfloat16() for width in (HIDDEN, INTERMEDIATE)}


def make_native_round(
    library: Library, packed: Sequence[PackedLinear], inputs: dict[int, Tensor]
) -> Callable[[], None]:
    """A function that multiplies the inputs with all packed weights."""
    rows = len(inputs[HIDDEN])
    outs = {one.out_features: torch.empty(rows, one.out_features).bfloat16() for one in packed}
    calls = [
        make_linear_call(inputs[one.in_features], one, None, outs[one.out_features])
        for one in packed
    ]

    def run_round(keep_alive: object = outs) -> None:
        for call in calls:
            library.linear(ctypes.byref(call))

    return run_round


def make_torch_round(weights: Sequence[Tensor], inputs: dict[int, Tensor]) -> Callable[[], None]:
    """A function that multiplies the inputs with all weights in torch."""

    def run_round() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    return run_round


def measure(rounds: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Run the sides in turns for `seconds`. Returns the minimum milliseconds of each side, and the
    fraction of the CPUs that other processes used."""
    least = dict.fromkeys(rounds, float("inf"))
    for run in rounds.values():
        run()
    busy_before, own_before, started = _busy_seconds(), time.process_time(), time.perf_counter()
    while time.perf_counter() - started < seconds:
        for name, run in rounds.items():
            time.sleep(SETTLE_SECONDS)
            for _ in range(ROUNDS_IN_TURN):
                begun = time.perf_counter()
                run()
                least[name] = min(least[name], (time.perf_counter() - begun) * 1000)
    elapsed = time.perf_counter() - started
    others = _busy_seconds() - busy_before - (time.process_time() - own_before)
    return {**least, "others": max(0.0, others / elapsed / (psutil.cpu_count() or 1))}


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def run(args: argparse.Namespace, console: Console) -> dict[str, dict[str, dict[str, float]]]:
    """All figures, by format and number of rows."""
    torch.manual_seed(args.seed)
    library = load_library()
    library.set_threads(args.threads)
    torch.set_num_threads(library.num_threads)
    weights = make_torch_weights()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for format in args.formats:
        with console.status(f"packing {format}"):
            packed = pack_all(weights, format)
        megabytes = sum(one.num_bytes for one in packed) / 1e6
        results[format] = {}
        for rows in args.rows:
            inputs = make_inputs(rows)
            rounds = {
                "native": make_native_round(library, packed, inputs),
                "torch": make_torch_round(weights, inputs),
            }
            with console.status(f"{format}, {rows} rows"):
                figures = measure(rounds, args.seconds)
            figures["gigabytes_per_second"] = megabytes / figures["native"]
            results[format][str(rows)] = figures
    return results


def show(results: dict[str, dict[str, dict[str, float]]], console: Console) -> None:
    """Print the table."""
    columns = ("weights", "rows", "native ms", "GB/s", "torch bfloat16 ms", "ratio", "others")
    table = make_table(*columns)
    for format, by_rows in results.items():
        for rows, row in by_rows.items():
            table.add_row(
                format,
                rows,
                f"{row['native']:.2f}",
                f"{row['gigabytes_per_second']:.1f}",
                f"{row['torch']:.2f}",
                f"{row['torch'] / row['native']:.2f}x",
                f"{row['others']:.0%}",
            )
    console.print(table)


def main() -> None:
    """Measure all formats, show the table, and write the results."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 512])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["bfloat16", "Q4_1"])
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each row of the table")
    parser.add_argument("--threads", type=int, help="None: one per physical core")
    args = parser.parse_args()
    console = Console()
    results = run(args, console)
    show(results, console)
    record(args, "cpu_linears", {"results": results})


if __name__ == "__main__":
    main()
