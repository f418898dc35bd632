"""Measures the speed of the engine without a model: simulated requests per second on one core.

python benchmarks/simulator.py --help

The real EngineCore and plugins drive a simulated executor, which computes each token as a hash of
the KV slots that it reads. Every token is compared with the expected one. Rounds alternate between
runs with and without `EngineCore.check` before and after every commit.
"""

from __future__ import annotations

import argparse
import random
import time

from recording import make_parser, record, summarize

from tokenmill.core.config import EngineConfig
from tokenmill.core.engine.blocks.pool import hash_root
from tokenmill.core.engine.engine_core import EngineCore
from tokenmill.core.engine.request import Request
from tokenmill.core.engine.step import StepLimits
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.testing import SimulatedExecutor, expected_tokens
from tokenmill.testing.engine_driver import EngineDriver

VOCAB = 1000
BLOCK_SIZE = 16


def make_requests(args: argparse.Namespace) -> list[Request]:
    """Requests with random prompts."""
    rng = random.Random(args.seed)
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(rng.choices(range(VOCAB), k=args.input_len)),
            sampling_params=SamplingParams(),
            max_tokens=args.output_len,
            arrival_time=0.0,
            seed=number,
            cache_root=hash_root("simulated"),
        )
        for number in range(args.num_prompts)
    ]


def make_core(args: argparse.Namespace, num_blocks: int) -> EngineCore:
    """An engine with the plugins that plugins.toml enables."""
    return EngineCore(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=args.input_len + args.output_len,
        limits=StepLimits(
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=512,
            long_prefill_token_threshold=0,
            watermark_blocks=0,
            enable_prefix_caching=True,
        ),
        plugins=PluginHost.load(EngineConfig(disable_log_stats=True)),
    )


def serve(args: argparse.Namespace, checks: bool) -> float:
    """Requests per second, including the comparison of tokens."""
    num_blocks = 2 * args.max_num_seqs * -(-(args.input_len + args.output_len) // BLOCK_SIZE)
    core = make_core(args, num_blocks)
    executor = SimulatedExecutor(num_blocks=num_blocks, block_size=BLOCK_SIZE, vocab_size=VOCAB)
    driver = EngineDriver(core, executor, checks=checks)
    requests = make_requests(args)
    to_come = requests[::-1]
    begin = time.perf_counter()
    while to_come or core.has_work:
        while to_come and core.num_waiting < args.max_num_seqs:
            driver.queue([to_come.pop()])
        driver.step()
    for request in requests:
        right = expected_tokens(request.prompt_token_ids, args.output_len, request.seed, VOCAB)
        assert driver.tokens[request.engine_id] == right
    seconds = time.perf_counter() - begin
    return float(args.num_prompts / seconds)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--num-prompts", type=int, default=1000, help="number of requests")
    parser.add_argument("--input-len", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--max-num-seqs", type=int, default=32, help="maximum requests in one step")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with and without checks")
    args = parser.parse_args()
    rounds: dict[str, list[float]] = {"with checks": [], "without": []}
    for _ in range(args.rounds):
        for name, found in rounds.items():
            found.append(serve(args, checks=name == "with checks"))
    summary = {name: summarize(values) for name, values in rounds.items()}
    for name, figures in summary.items():
        print(f"{name}: {figures['median']:.0f} requests/s")
    record(args, "simulator", {"requests_per_second": summary})


if __name__ == "__main__":
    main()
