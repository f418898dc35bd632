"""Times the products with all weight matrices of a model, in bfloat16 and in quantized formats.

python benchmarks/cpu/linears.py --help

The weights are random and have a model's shapes. A round multiplies rows with all matrices, which
is the minimum work of a forward pass with that many tokens. Each product is called from Python,
which takes one microsecond longer than inside a decoder, for every format and library. These take
turns. The table shows the minimum time of all rounds, which is the time on an otherwise idle
machine. `others` is the fraction of the CPUs that other processes used meanwhile: do not trust a
row with more than about 5 %. TOKENMILL_CPU_ISA chooses the instruction set.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import psutil
import torch
from rich.console import Console
from torch import Tensor

from tokenmill.backends.cpu.native.library import InputPrecision, Library, load_library
from tokenmill.backends.cpu.packed_weights import (
    PackedLinear,
    WeightArena,
    make_linear_call,
    pack_linear,
    pack_weights,
)
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.packed import PackedWeights

sys.path.append(str(Path(__file__).parents[1]))
from recording import make_parser, make_table, record

ROUNDS_IN_TURN = 3
SETTLE_SECONDS = 0.02
"""Pause between the sides: OpenMP's threads spin for milliseconds after torch's last product."""
BASE = "bfloat16"
HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "MXFP4": (),
}
"""Offsets of the half-precision numbers in a block. Other formats have one, at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model's matrices."""

    hidden: int
    intermediate: int
    query: int
    qkv: int
    layers: int
    vocabulary: int

    def matrices(self) -> list[tuple[int, int]]:
        """Rows and inputs in the order of a forward pass. Gate and up are one matrix."""
        layer = [
            (self.qkv, self.hidden),
            (self.hidden, self.query),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        ]
        return layer * self.layers + [(self.vocabulary, self.hidden)]


SHAPES = {
    "SmolLM2-135M": Shape(
        hidden=576, intermediate=1536, query=576, qkv=960, layers=30, vocabulary=49152
    ),
    "Qwen3-0.6B": Shape(
        hidden=1024, intermediate=3072, query=2048, qkv=4096, layers=28, vocabulary=151936
    ),
}


def pack_all(shape: Shape, format: str, float_inputs: bool) -> list[PackedLinear]:
    """Random weights of a format."""
    arena = WeightArena()
    packed = []
    for rows, inputs in shape.matrices():
        is_gate_up = rows == 2 * shape.intermediate
        parts = [rows // 2, rows // 2] if is_gate_up else [rows]
        if format == BASE:
            floats = [(torch.randn(n, inputs) * 0.02).bfloat16() for n in parts]
            packed.append(pack_linear(floats[0], up=floats[1] if is_gate_up else None, arena=arena))
            continue
        # As in published files of small formats, the matrix of the logits has eight bits.
        is_head = rows == shape.vocabulary
        kind = gguf.GGMLQuantizationType["Q8_0" if is_head and format < "Q6" else format]
        blocks = [random_blocks(kind, n, inputs) for n in parts]
        up = blocks[1] if is_gate_up else None
        precision = InputPrecision.TWO_INT8 if is_head else InputPrecision.INT8
        if float_inputs:
            precision = InputPrecision.FLOAT
        packed.append(pack_weights(blocks[0], up=up, inputs=precision, arena=arena))
    return packed


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int, inputs: int) -> PackedWeights:
    """Random numbers, with scales near 2^-6."""
    format = GGUFBlocks(kind)
    block_bytes = format.row_bytes(format.block_size)
    raw = torch.randint(256, (rows, inputs // format.block_size, block_bytes), dtype=torch.uint8)
    for at in HALVES.get(kind.name, (0,)):
        raw[:, :, at + 1] = 9 << 2
    if kind.name == "MXFP4":
        raw[:, :, 0] = 127 - 6
    return PackedWeights(format, (rows, inputs), (raw.view(rows, -1),))


def make_inputs(shape: Shape, rows: int) -> dict[int, Tensor]:
    """Random inputs by width."""
    widths = {inputs for _, inputs in shape.matrices()}
    return {width: torch.randn(rows, width).bfloat16() for width in widths}


def make_native_round(
    library: Library, packed: Sequence[PackedLinear], inputs: dict[int, Tensor]
) -> Callable[[], None]:
    """A function that multiplies the inputs with all packed weights."""
    rows = len(next(iter(inputs.values())))
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
    """All figures, by number of rows and side: milliseconds, and `others`."""
    torch.manual_seed(args.seed)
    library = load_library()
    library.set_threads(args.threads)
    torch.set_num_threads(library.num_threads)
    shape = SHAPES[args.shape]
    sides: dict[str, list[PackedLinear]] = {}
    for format in (BASE, *args.formats):
        with console.status(f"packing {format}"):
            sides[format] = pack_all(shape, format, args.float_inputs)
    results: dict[str, dict[str, dict[str, float]]] = {
        "megabytes": {
            name: {"packed": sum(one.num_bytes for one in packed) / 1e6}
            for name, packed in sides.items()
        }
    }
    matrices = [torch.randn(size).bfloat16() for size in shape.matrices()] if args.torch else []
    for rows in args.rows:
        inputs = make_inputs(shape, rows)
        rounds = {
            name: make_native_round(library, packed, inputs) for name, packed in sides.items()
        }
        if matrices:
            rounds["torch bfloat16"] = make_torch_round(matrices, inputs)
        with console.status(f"{rows} rows"):
            figures = measure(rounds, args.seconds)
        results[str(rows)] = {"milliseconds": figures}
    return results


def show(results: dict[str, dict[str, dict[str, float]]], console: Console) -> None:
    """Print the table."""
    table = make_table("rows", "weights", "ms", "GB/s", f"{BASE} / it", "others")
    for rows, figures in results.items():
        if rows == "megabytes":
            continue
        milliseconds = dict(figures["milliseconds"])
        others = milliseconds.pop("others")
        for name, ms in milliseconds.items():
            size = results["megabytes"].get(name)
            table.add_row(
                rows,
                name,
                f"{ms:.2f}",
                f"{size['packed'] / ms:.1f}" if size else "",
                f"{milliseconds[BASE] / ms:.2f}x",
                f"{others:.0%}",
            )
    console.print(table)


def main() -> None:
    """Measure all formats, show the table, and write the results."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 512])
    parser.add_argument("--formats", nargs="+", default=["Q4_1", "Q8_0"], help="GGUF types")
    parser.add_argument("--shape", choices=SHAPES, default="SmolLM2-135M")
    parser.add_argument(
        "--float-inputs", action="store_true", help="inputs are not rounded to int8"
    )
    parser.add_argument("--torch", action="store_true", help="measure torch in bfloat16, too")
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each row of the table")
    parser.add_argument("--threads", type=int, help="None: one per physical core")
    args = parser.parse_args()
    console = Console()
    results = run(args, console)
    show(results, console)
    record(args, "cpu_linears", {"results": results})


if __name__ == "__main__":
    main()
