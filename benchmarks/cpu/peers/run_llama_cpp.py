"""Runs llama.cpp: its own benchmarks for decode and prefill, its HTTP server for the mixed load.

Its batched benchmark decodes all sequences in the same steps, as the offline APIs of other engines
do. `--model` names a GGUF file; `--tools` the folder with llama-bench, llama-batched-bench and
llama-server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from http_load import run, server
from worker import BATCHES, say
from workloads import Request, mixed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--precision")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workloads", nargs="+", required=True)
    parser.add_argument("--output-len", type=int, default=128)
    args = parser.parse_args()
    for name in args.workloads:
        say("begin", name)
        if name in BATCHES:
            figures = _decode(args, BATCHES[name])
        elif name == "prefill-512":
            figures = {"tokens_per_second": _prefill(args)}
        else:
            figures = _mixed(args)
        say("end", name, **figures)


def _decode(args: argparse.Namespace, batch: int) -> dict[str, float]:
    command = [args.tools / "llama-batched-bench", "-m", args.model, "-t", str(args.threads)]
    command += ["-c", str(max(2048, batch * 320)), "-b", "2048", "-ub", "512", "-npp", "128"]
    command += ["-ntg", str(args.output_len), "-npl", str(batch), "--output-format", "jsonl"]
    runs = [_last_json(_output(command)) for _ in range(2)]
    return {
        "tokens_per_second": max(run["speed_tg"] for run in runs),
        "time_to_first_token": min(run["t_pp"] for run in runs),
    }


def _prefill(args: argparse.Namespace) -> float:
    command = [args.tools / "llama-bench", "-m", args.model, "-t", str(args.threads)]
    found = json.loads(_output([*command, "-p", "512", "-n", "0", "-r", "5", "-o", "json"]))
    return max(float(speed) for speed in found[0]["samples_ts"])


def _mixed(args: argparse.Namespace) -> dict[str, float]:
    command = [args.tools / "llama-server", "-m", args.model, "-t", str(args.threads)]
    command += ["-c", "32768", "-np", "32", "-b", "2048", "-ub", "512", "--no-webui"]
    requests = mixed()
    bodies = [_body(request) for request in requests]
    with server(command) as port:
        run(port, "/completion", requests[:2], bodies[:2])  # warms up
        load = run(port, "/completion", requests, bodies)
    return {
        "tokens_per_second": sum(r.max_tokens for r in requests) / load.seconds,
        "client_cpu_share": load.client_cpu_seconds / load.seconds,
    }


def _body(request: Request) -> dict[str, Any]:
    return {
        "prompt": request.prompt_token_ids,
        "n_predict": request.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
    }


def _output(command: list[str | Path]) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"LC_ALL": "C"},
    )
    return done.stdout


def _last_json(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    found: dict[str, float] = json.loads(lines[-1])
    return found


if __name__ == "__main__":
    main()
