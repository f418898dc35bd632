"""Times one contender's attention on all workloads, and writes a line of JSON for each.

python benchmarks/gpu/kernels.py --help

It skips the remaining workloads when its time is over. Each line is written at once.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from kernel_contenders import CONTENDERS, Contender, Unable
from kernel_timing import measure
from kernel_workloads import FULL, MINIATURE, Workload


def main() -> None:
    args = parse_args()
    started = time.monotonic()
    device = torch.device(args.device)
    dtype = getattr(torch, args.dtype)
    contender = CONTENDERS[args.contender]()
    for workload in MINIATURE if args.miniature else FULL:
        if time.monotonic() - started > args.seconds:
            line = {"error": "time is over"}
        else:
            line = time_one(contender, workload, dtype, device, args.seconds_each)
        report(args, workload, contender, dtype, line)


def time_one(
    contender: Contender,
    workload: Workload,
    dtype: torch.dtype,
    device: torch.device,
    seconds: float,
) -> dict[str, Any]:
    """The times, or the error. An error of the device ends the program."""
    try:
        return asdict(measure(contender, workload, dtype, device, seconds))
    except Unable as reason:
        return {"error": str(reason)}
    except torch.OutOfMemoryError as error:
        return {"error": f"out of memory: {str(error).partition('.')[0]}"}
    except torch.AcceleratorError:
        raise
    except Exception as error:  # other workloads may still succeed
        return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}


def report(
    args: Namespace,
    workload: Workload,
    contender: Contender,
    dtype: torch.dtype,
    line: dict[str, Any],
) -> None:
    """Append a result to the file, and print it."""
    of_workload = {
        "contender": args.contender,
        "is_peer": contender.is_peer,
        "heads": workload.heads.name,
        "workload": workload.name,
        "is_decode": workload.is_decode,
        "num_decodes": workload.num_decodes,
        "bytes": workload.moved_bytes(dtype.itemsize),
        "operations": workload.operations(),
    }
    with args.output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(of_workload | line) + "\n")
    outcome = line.get("error") or f"{line['microseconds']:.1f} us ({line['method']})"
    print(f"{args.contender}: {workload.heads.name}, {workload.name}: {outcome}", flush=True)


def parse_args() -> Namespace:
    parser = ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("contender", choices=list(CONTENDERS))
    parser.add_argument("--output", type=Path, required=True, help="file to append lines to")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all workloads")
    parser.add_argument(
        "--seconds-each", type=float, default=0.1, help="time for each workload, after warm-up"
    )
    parser.add_argument("--miniature", action="store_true", help="tiny workloads, to rehearse")
    return parser.parse_args()


if __name__ == "__main__":
    main()
