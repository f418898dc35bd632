"""Measures the cost of the HTTP server: streamed answers compared with the offline path, in pairs.

One process holds the engine and the server. A second one, on the same cores, is the client. Each
pair generates the same tokens twice, once in the process and once over HTTP. The order alternates,
so that a drift of the machine's speed affects both. The figure is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recording import make_parser, record, summarize
from tqdm import tqdm

from tokenmill import AsyncEngine, SamplingParams
from tokenmill.api.listening import bind
from tokenmill.api.openai.context import ServerSettings
from tokenmill.api.server import ServeOptions, make_server
from tokenmill.core.sampling_params import OutputKind

CLIENT = Path(__file__).parent / "cpu/peers/http_load.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds for the same tokens on both paths; `client_cpu` is the CPU time of the client."""

    offline: float
    http: float
    client_cpu: float


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
    engine: AsyncEngine, client: Client, num_requests: int, args: argparse.Namespace
) -> list[Pair]:
    """Measure all pairs for one number of requests. The first pair warms up and does not count."""
    rng = random.Random(args.seed)
    pairs = []
    for i in tqdm(range(args.pairs + 1), desc=f"{num_requests} requests", disable=None):
        prompts = [[rng.randrange(100, 40000) for _ in range(32)] for _ in range(num_requests)]
        offline = await generate(engine, prompts, args.output_len) if i % 2 else 0.0
        http = await client.ask(prompts, args.output_len)
        offline = offline or await generate(engine, prompts, args.output_len)
        pairs.append(Pair(offline=offline, http=http["seconds"], client_cpu=http["cpu"]))
    return pairs[1:]


async def run(args: argparse.Namespace) -> dict[str, object]:
    found: dict[str, object] = {}
    options: dict[str, Any] = {"enable_prefix_caching": False, "disable_log_stats": True}
    async with AsyncEngine(
        args.model, dtype=args.dtype, served_model_name="model", **options
    ) as engine:
        sock = bind("127.0.0.1", 0)
        server = make_server(engine, ServeOptions(settings=ServerSettings()))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        client = await Client.start(sock.getsockname()[1])
        for num_requests in args.num_requests:
            pairs = await measure(engine, client, num_requests, args)
            found[str(num_requests)] = describe(pairs, num_requests * args.output_len)
        await client.close()
        server.should_exit = True
        await serving
    return found


def describe(pairs: list[Pair], num_tokens: int) -> dict[str, object]:
    """Medians over the pairs."""
    return {
        "http_to_offline": summarize([pair.offline / pair.http for pair in pairs]),
        "offline_tokens_per_second": summarize([num_tokens / pair.offline for pair in pairs]),
        "http_tokens_per_second": summarize([num_tokens / pair.http for pair in pairs]),
        "client_cpu_share": round(statistics.median(p.client_cpu / p.http for p in pairs), 4),
        "client_cpu_ms_per_token": round(
            statistics.median(p.client_cpu for p in pairs) / num_tokens * 1e3, 4
        ),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="auto", help="auto keeps quantized weights")
    parser.add_argument("--num-requests", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=11)
    args = parser.parse_args()
    found = asyncio.run(run(args))
    print(json.dumps(found, indent=2))
    record(args, "http_overhead", found)


if __name__ == "__main__":
    main()
