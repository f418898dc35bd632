"""Measures one server with `tokenmill bench serve` and with vLLM's client, in turns.

Both clients send the same prompts to the same server. A load is either closed (a fixed number of
requests in flight) or open (requests arrive at random times, which both draw from the seed of the
round). The figures of `tokenmill bench serve` should lie within the spread of vLLM's own rounds.
vLLM's build for CPUs is installed first, in the folder of the peers.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from recording import make_parser, make_table, record, summarize
from rich.console import Console
from tqdm import tqdm

PEERS = Path(__file__).parent / "cpu/peers"
sys.path.insert(0, str(PEERS))

from http_load import server  # noqa: E402
from make_peers import make_model, make_vllm  # noqa: E402

from tokenmill.backends.weights.default_model import find_default_model  # noqa: E402

VLLM_CLIENT = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` without the command line around it, which asks for a package named vllm."""
METRICS = (
    *("request_throughput", "output_throughput"),
    *(f"{what}_{name}_ms" for name in ("ttft", "tpot", "itl") for what in ("median", "p99")),
)
Rounds = dict[str, list[dict[str, float]]]
"""The results of all rounds, by client."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--peers", type=Path, default=PEERS.parent / ".peers", help="their folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-prompts", type=int, default=40)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--max-concurrency", type=int, default=8, help="of the closed load")
    parser.add_argument("--request-rate", type=float, default=3.0, help="of the open load")
    args = parser.parse_args()
    peers: Path = args.peers.absolute()
    peers.mkdir(parents=True, exist_ok=True)
    make_model(peers)
    make_vllm(peers)
    pip = (peers / "vllm/bin/python", "-m", "pip", "--quiet", "install")
    subprocess.run([*pip, "pandas"], check=True)  # vLLM's client reads files of prompts with it
    with TemporaryDirectory() as folder:
        found = measure(args, peers, Path(folder))
    loads = {name: compare(rounds) for name, rounds in found.items()}
    for name, figures in loads.items():
        show(name, figures)
    del args.peers
    record(args, "bench_serve", {"loads": loads})


def measure(args: Namespace, peers: Path, folder: Path) -> dict[str, Rounds]:
    """Measure all rounds of both loads. The first of each load warms up and does not count."""
    loads = {
        "closed": ("--max-concurrency", str(args.max_concurrency)),
        "open": ("--request-rate", str(args.request_rate)),
    }
    rng = random.Random(args.seed)
    prompts = [
        " ".join(rng.choices(WORDS, k=rng.randrange(20, 100))) for _ in range(args.num_prompts)
    ]
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
    (folder / "prompts.jsonl").write_text("".join(lines))
    clients = {
        "tokenmill": (sys.executable, "-m", "tokenmill", "bench", "serve"),
        "vllm": (str(peers / "vllm/bin/python"), "-c", VLLM_CLIENT),
    }
    found: dict[str, Rounds] = {load: {client: [] for client in clients} for load in loads}
    # One computing thread leaves a core to the clients: the heavier one must not slow the server.
    command = ("env", "OMP_NUM_THREADS=1", sys.executable, "-m", "tokenmill", "serve")
    model = ("--model", find_default_model(), "--served-model-name", "model")
    with server([*command, *model, "--no-enable-prefix-caching", "--disable-log-stats"]) as port:
        for index in tqdm(range(args.rounds + 1), desc="rounds", disable=None):
            for load, words in loads.items():
                for client in sorted(clients, reverse=bool(index % 2)):
                    own = [*words, "--port", str(port), "--seed", str(index)]
                    own += ["--tokenizer", str(peers / "model")]
                    result = run((*clients[client], *own), args, folder)
                    if index:
                        found[load][client].append(result)
    return found


def run(command: Sequence[str], args: Namespace, folder: Path) -> dict[str, float]:
    """The figures of one run of a client. Raises RuntimeError if not all requests succeed."""
    words = [
        *("--backend", "openai", "--model", "model", "--dataset-name", "custom"),
        *("--dataset-path", str(folder / "prompts.jsonl"), "--disable-shuffle"),
        *("--skip-chat-template", "--custom-output-len", str(args.output_len)),
        *("--num-prompts", str(args.num_prompts), "--ignore-eos", "--temperature", "0"),
        *("--ready-check-timeout-sec", "0", "--percentile-metrics", "ttft,tpot,itl"),
        *("--save-result", "--result-dir", str(folder), "--result-filename", "result.json"),
    ]
    offline = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, *words], env=os.environ | offline, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    result = json.loads((folder / "result.json").read_text())
    if result["completed"] != args.num_prompts:
        raise RuntimeError(f"{result['failed']} requests failed: {done.stdout[-2000:]}")
    return {name: result[name] for name in (*METRICS, "total_input_tokens", "total_output_tokens")}


def compare(rounds: Rounds) -> dict[str, dict[str, object]]:
    """Per figure: both clients over their rounds, and whether the median of `tokenmill bench serve`
    lies within vLLM's spread."""
    found: dict[str, dict[str, object]] = {}
    for name in rounds["vllm"][0]:
        values = {client: [one[name] for one in rounds[client]] for client in rounds}
        own = median(values["tokenmill"])
        found[name] = {client: summarize(one) for client, one in values.items()}
        found[name]["is_within"] = min(values["vllm"]) <= own <= max(values["vllm"])
    return found


def show(load: str, figures: dict[str, dict[str, object]]) -> None:
    """Print the figures of one load."""
    table = make_table(
        f"{load} load", "tokenmill bench serve", "vLLM's client", "within its spread"
    )
    for name, one in figures.items():
        cells = []
        for client in ("tokenmill", "vllm"):
            of = one[client]
            assert isinstance(of, dict)
            cells.append(f"{of['median']:.2f} ({of['lowest']:.2f} to {of['highest']:.2f})")
        table.add_row(name, *cells, "yes" if one["is_within"] else "no")
    Console().print(table)


WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world")


if __name__ == "__main__":
    main()
