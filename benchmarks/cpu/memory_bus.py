"""Measures how much of the memory bus a single stream uses: bytes per second, compared with a read.

python benchmarks/cpu/memory_bus.py --help

A decode of one token reads all weights once, except the table of embeddings, and the KV cache of
its sequence. Tokens per second times these bytes is what the stream reads. The bus is measured in
the same process, in turns with decodes: all threads add up an array that no cache holds. The
largest figure of either counts, since other processes only take from the bus.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recording import make_parser, record, set_threads, summarize

from tokenmill import LLM, SamplingParams
from tokenmill.assembly import inspect_model
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import no_progress

_READ_BYTES = 1 << 30
_NUM_READS = 5
_PROMPT_LEN = 32


def bus_bandwidth(array: torch.Tensor) -> float:
    """Bytes per second of the fastest of a few reads of the array."""
    seconds = []
    for _ in range(_NUM_READS):
        started = time.perf_counter()
        array.sum()
        seconds.append(time.perf_counter() - started)
    return array.nbytes / min(seconds)


def decode_speed(llm: LLM, num_tokens: int) -> float:
    """Tokens per second of one stream, without its prompt."""
    prompt = list(range(300, 300 + _PROMPT_LEN))

    def seconds(length: int) -> float:
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        started = time.perf_counter()
        llm.generate([prompt], [params], use_tqdm=False)
        return time.perf_counter() - started

    return (num_tokens - 1) / (seconds(num_tokens) - seconds(1))


def bytes_per_token(args: argparse.Namespace) -> int:
    """Bytes of weights and KV cache that a decode reads."""
    settings = EngineConfig(model=args.model, dtype=args.dtype, device="cpu")
    found = inspect_model(settings, no_progress)
    # A token reads one row of the table of embeddings. A tied head has its own packed copy.
    config = open_checkpoint(Path(found.path)).config
    table = config.vocab_size * config.hidden_size * 2
    num_tokens = _PROMPT_LEN + args.output_len // 2
    num_bytes: int = found.weight_bytes - table + found.kv_bytes_per_token * num_tokens
    return num_bytes


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="auto", choices=["auto", "bfloat16"])
    parser.add_argument("--threads", type=int, help="computing threads; None: torch's choice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output-len", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    set_threads(args)
    console = Console(stderr=True)
    array = torch.zeros(_READ_BYTES // 8, dtype=torch.int64)
    reads, speeds = [], []
    with LLM(args.model, dtype=args.dtype, device="cpu", enable_prefix_caching=False) as llm:
        decode_speed(llm, 8)  # warms up
        for _ in track(range(args.rounds), "measuring", console=console, transient=True):
            reads.append(bus_bandwidth(array))
            speeds.append(decode_speed(llm, args.output_len))
    num_bytes = bytes_per_token(args)
    shares = [num_bytes * speed / max(reads) for speed in speeds]
    console.print(
        f"{num_bytes / 1e6:.1f} MB per token, {max(speeds):.1f} tokens/s: "
        f"{max(shares):.0%} of {max(reads) / 1e9:.1f} GB/s"
    )
    result = {
        "bytes_per_token": num_bytes,
        "bus_bytes_per_second": summarize(reads),
        "tokens_per_second": summarize(speeds),
        "share_of_the_bus": summarize(shares),
    }
    record(args, "memory_bus", result)


if __name__ == "__main__":
    main()
