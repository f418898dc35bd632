"""Measures the cost of the HTTP server: streamed answers compared with the offline path, in rounds.

This process holds an engine and its server, and a second server whose engine is in a process of
its own. Another process, on the same cores, is the client. Each round generates the same tokens on
all three paths: offline, "http" and "engine_process". The order rotates, so that a drift of the
machine's speed affects all of them. The figures are medians over the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from recording import make_parser, record, summarize
from tqdm import tqdm

from tokenmill import AsyncEngine, SamplingParams
from tokenmill.api.listening import bind
from tokenmill.api.server import ServeOptions, make_server
from tokenmill.api.serving.context import ServerSettings
from tokenmill.assembly import build_supervised_engine
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.client import EngineClient
from tokenmill.core.interfaces import no_progress
from tokenmill.core.requests.sampling_params import OutputKind

CLIENT = Path(__file__).parent / "cpu/peers/http_load.py"


Round = dict[str, float]
"""Seconds for the same tokens, by path, and the seconds of CPU time of each path's client."""


class Client:
    """The client process. It reads a load as a line of JSON, and writes its figures as a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, port: int) -> Client:
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, CLIENT, str(port)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 24,
            )
        )

    async def ask(self, prompts: list[list[int]], output_len: int) -> dict[str, float]:
        """Run a load; returns its seconds and CPU seconds. Raises RuntimeError if it fails."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"prompts": prompts, "max_tokens": output_len}).encode() + b"\n")
        line = await stdout.readline()
        if not line:
            raise RuntimeError("the client process ended: see its error above")
        figures: dict[str, float] = json.loads(line)
        return figures

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def generate(engine: AsyncEngine, prompts: list[list[int]], output_len: int) -> float:
    """Seconds of the offline path, where outputs are read at the end of each request only."""
    params = SamplingParams(
        temperature=0, max_tokens=output_len, ignore_eos=True, output_kind=OutputKind.FINAL
    )

    async def one(prompt: list[int]) -> None:
        async for _ in engine.generate(prompt, params):
            pass

    started = time.perf_counter()
    await asyncio.gather(*map(one, prompts))
    return time.perf_counter() - started


async def measure(
    engine: AsyncEngine, clients: dict[str, Client], num_requests: int, args: argparse.Namespace
) -> list[Round]:
    """Measure all rounds for one number of requests. The first one warms up and does not count."""
    rng = random.Random(args.seed)
    rounds: list[Round] = []
    for i in tqdm(range(args.rounds + 1), desc=f"{num_requests} requests", disable=None):
        prompts = [[rng.randrange(100, 40000) for _ in range(32)] for _ in range(num_requests)]
        found: Round = {}
        paths = ["offline", *clients]
        for path in paths[i % len(paths) :] + paths[: i % len(paths)]:
            if path == "offline":
                found[path] = await generate(engine, prompts, args.output_len)
            else:
                answer = await clients[path].ask(prompts, args.output_len)
                found[path], found[f"{path} client"] = answer["seconds"], answer["cpu"]
        rounds.append(found)
    return rounds[1:]


@asynccontextmanager
async def served(engine: EngineClient) -> AsyncIterator[Client]:
    """A client of a server for a started engine."""
    sock = bind("127.0.0.1", 0)
    server = make_server(engine, ServeOptions(settings=ServerSettings()))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    client = await Client.start(sock.getsockname()[1])
    yield client
    await client.close()
    server.should_exit = True
    await serving


async def run(args: argparse.Namespace) -> dict[str, object]:
    config = EngineConfig(
        model=args.model,
        dtype=args.dtype,
        served_model_name="model",
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    remote = build_supervised_engine(config, no_progress, stall_timeout=60, max_restarts=0)
    async with (
        AsyncEngine(**asdict(config)) as engine,
        remote,
        served(engine) as http,
        served(remote) as engine_process,
    ):
        clients = {"http": http, "engine_process": engine_process}
        return {
            str(num_requests): describe(
                await measure(engine, clients, num_requests, args), num_requests, args.output_len
            )
            for num_requests in args.num_requests
        }


def describe(rounds: list[Round], num_requests: int, output_len: int) -> dict[str, object]:
    """Medians over the rounds. A step makes one token of each request."""
    num_tokens = num_requests * output_len
    found: dict[str, object] = {
        "offline_tokens_per_second": summarize([num_tokens / r["offline"] for r in rounds])
    }
    for path in ("http", "engine_process"):
        client_cpu = statistics.median(r[f"{path} client"] for r in rounds)
        found[path] = {
            "to_offline": summarize([r["offline"] / r[path] for r in rounds]),
            "ms_more_per_step": summarize(
                [(r[path] - r["offline"]) / output_len * 1e3 for r in rounds]
            ),
            "client_cpu_ms_per_token": round(client_cpu / num_tokens * 1e3, 4),
        }
    found["engine_process_to_http"] = summarize([r["http"] / r["engine_process"] for r in rounds])
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="auto", help="auto keeps quantized weights")
    parser.add_argument("--num-requests", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    found = asyncio.run(run(args))
    print(json.dumps(found, indent=2))
    record(args, "http_overhead", found)


if __name__ == "__main__":
    main()
