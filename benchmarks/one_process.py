"""Measures memory and load time of its own fresh process. memory.py runs it and reads the JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

FIELDS = {"rss": "Rss", "pss": "Pss", "anonymous": "Pss_Anon", "file_mapped": "Pss_File"}
"""Names of figures, and their lines in /proc/self/smaps_rollup."""
PROMPT = "The capital of France is"


def import_torch() -> dict[str, float]:
    """Seconds to import torch, and MiB of memory after it."""
    started = time.perf_counter()
    import torch  # noqa: F401

    return {"import_seconds": time.perf_counter() - started, **read_memory()}


def load_and_generate(args: argparse.Namespace) -> dict[str, float]:
    """Seconds until the engine is ready, and MiB of memory after one generation. The time includes
    the import of tokenmill, but not that of torch."""
    import torch  # noqa: F401

    started, used = time.perf_counter(), time.process_time()
    from tokenmill import LLM, SamplingParams

    cache = None if args.kv_cache_mib is None else args.kv_cache_mib << 20
    options = {"device": "cpu", "dtype": args.dtype, "kv_cache_memory": cache}
    with LLM(args.model, disable_log_stats=True, **options) as llm:
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - used
        params = SamplingParams(temperature=0, max_tokens=args.output_len, ignore_eos=True)
        llm.generate(PROMPT, params, use_tqdm=False)
        return {**read_memory(), "load_seconds": seconds, "load_cpu_seconds": cpu_seconds}


def read_memory() -> dict[str, float]:
    """Memory of this process, in MiB."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    lines = dict(line.split(":") for line in text.splitlines()[1:])
    return {name: int(lines[key].split()[0]) / 1024 for name, key in FIELDS.items()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["torch", "tokenmill"])
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-cache-mib", type=int)
    parser.add_argument("--output-len", type=int, default=32)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    print(json.dumps(import_torch() if args.kind == "torch" else load_and_generate(args)))


if __name__ == "__main__":
    main()
