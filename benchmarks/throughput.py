"""Compares tokenmill with transformers' `generate`: same weights, prompts and token counts.

python benchmarks/throughput.py --help

All requests arrive at the start. Decoding is greedy, and no end token ends an answer early.
transformers runs the prompts one by one, and as one left-padded batch. The contenders run in one
process and take turns, so that a busy moment of the machine does not hit only one of them. Figures
are medians over the rounds. Only requested tokens count. tokenmill's time includes detokenization.
Its prefix cache is off, because every round repeats the prompts.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from recording import (
    add_model_flags,
    make_parser,
    make_table,
    record,
    set_threads,
    summarize,
)
from rich.console import Console

from tokenmill import LLM, SamplingParams, __version__
from tokenmill.assembly import verify_default_model
from tokenmill.core.interfaces import no_progress

TokenIds = list[int]
OURS = "tokenmill"
ONE_BY_ONE = "transformers, one by one"
BATCHED = "transformers, one batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt, and the number of tokens to generate."""

    prompt: TokenIds
    num_output_tokens: int


Contender = Callable[[Sequence[Job]], list[TokenIds]]


def make_jobs(args: argparse.Namespace, vocab_size: int) -> list[Job]:
    """Random prompts. Lengths are uniform within +- range_ratio of the flags' values."""
    rng = random.Random(args.seed)
    low, high = 1 - args.range_ratio, 1 + args.range_ratio
    return [
        Job(
            prompt=rng.choices(
                range(256, vocab_size), k=max(1, round(args.input_len * rng.uniform(low, high)))
            ),
            num_output_tokens=max(1, round(args.output_len * rng.uniform(low, high))),
        )
        for _ in range(args.num_prompts)
    ]


def tokenmill_contender(llm: LLM) -> Contender:
    """Gives all jobs to the engine at once."""

    def run(jobs: Sequence[Job]) -> list[TokenIds]:
        params = [
            SamplingParams(temperature=0.0, max_tokens=job.num_output_tokens, ignore_eos=True)
            for job in jobs
        ]
        outputs = llm.generate([job.prompt for job in jobs], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return run


def load_transformers(path: Path, dtype: str) -> Any:
    """transformers' model of the same file or directory. Weights are dense, as in tokenmill."""
    import transformers

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(path)}
    if path.is_file():
        source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        if hasattr(transformers, "GgufConfig"):  # newer versions may keep weights quantized
            source["quantization_config"] = transformers.GgufConfig(dequantize=True)
    wanted = getattr(torch, dtype)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=wanted)
    if found := {weight.dtype for weight in model.parameters()} - {wanted}:
        raise SystemExit(f"transformers loaded the weights as {found}, not as {dtype}")
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def transformers_batched(model: Any) -> Contender:
    """Runs all jobs as one batch: short prompts are padded, all answers get the longest length."""

    def run(jobs: Sequence[Job]) -> list[TokenIds]:
        width = max(len(job.prompt) for job in jobs)
        ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in jobs])
        is_token = [[0] * (width - len(j.prompt)) + [1] * len(j.prompt) for j in jobs]
        with torch.inference_mode():
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.tensor(is_token),
                max_new_tokens=max(job.num_output_tokens for job in jobs),
                do_sample=False,
            )
        rows = out[:, width:].tolist()
        return [row[: job.num_output_tokens] for row, job in zip(rows, jobs, strict=True)]

    return run


def transformers_one_by_one(model: Any) -> Contender:
    """Calls `generate` once per job."""
    batched = transformers_batched(model)
    return lambda jobs: [batched([job])[0] for job in jobs]


def measure(
    contenders: dict[str, Contender], jobs: Sequence[Job], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[TokenIds]]]:
    """Seconds of every round, and the tokens, by contender. The order rotates by round."""
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    tokens: dict[str, list[TokenIds]] = {}
    for name in names:
        print(f"warming up: {name}", flush=True)
        contenders[name]([Job(prompt=job.prompt, num_output_tokens=4) for job in jobs])
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            tokens[name] = contenders[name](jobs)
            seconds[name].append(time.perf_counter() - start)
            print(f"round {turn + 1}: {name}: {seconds[name][-1]:.1f} s", flush=True)
    return seconds, tokens


def check_lengths(jobs: Sequence[Job], tokens: dict[str, list[TokenIds]]) -> None:
    """Exit unless each contender generated the requested number of tokens for every job."""
    for name, answers in tokens.items():
        if [len(answer) for answer in answers] != [job.num_output_tokens for job in jobs]:
            raise SystemExit(f"{name} did not generate the requested number of tokens")


def condense(
    jobs: Sequence[Job], seconds: dict[str, list[float]], tokens: dict[str, list[TokenIds]]
) -> dict[str, Any]:
    """Rates by contender, and the ratio of tokenmill's to the better one of transformers."""
    wanted = sum(job.num_output_tokens for job in jobs)
    rates = {name: wanted / statistics.median(taken) for name, taken in seconds.items()}
    better = max((ONE_BY_ONE, BATCHED), key=rates.__getitem__)
    return {
        "prompt_tokens": sum(len(job.prompt) for job in jobs),
        "output_tokens": wanted,
        "tokens_per_second": {name: round(rate, 2) for name, rate in rates.items()},
        "seconds": {name: summarize(taken) for name, taken in seconds.items()},
        "better_of_transformers": better,
        "ratio_to_better": round(rates[OURS] / rates[better], 3),
        "prompts_with_same_tokens": {
            name: sum(a == b for a, b in zip(tokens[OURS], tokens[name], strict=True))
            for name in seconds
            if name != OURS
        },
    }


def show(result: dict[str, Any], num_prompts: int) -> None:
    """Print the table, and the number of prompts with the same tokens."""
    rates = result["tokens_per_second"]
    table = make_table("", "tok/s", "median s", "fastest s", "slowest s", "tokenmill is")
    for name, rate in rates.items():
        times = (f"{result['seconds'][name][key]:.2f}" for key in ("median", "lowest", "highest"))
        ratio = "" if name == OURS else f"{rates[OURS] / rate:.2f} x"
        table.add_row(name, f"{rate:.1f}", *times, ratio)
    Console().print(table)
    print(f"ratio to the better of transformers' rates: {result['ratio_to_better']:.2f} x")
    for name, same in result["prompts_with_same_tokens"].items():
        print(f"same tokens as {name}: {same} of {num_prompts} prompts")


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_model_flags(parser)
    parser.add_argument("--num-prompts", type=int, default=16, help="prompts, all at the start")
    for name, text in (("input", "tokens of a prompt"), ("output", "tokens of an answer")):
        parser.add_argument(f"--{name}-len", f"--{name}-tokens", type=int, default=64, help=text)
    parser.add_argument("--range-ratio", type=float, default=0.0, help="spread of lengths, 0-1")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each contender")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    set_threads(args)
    path = Path(args.model) if args.model else verify_default_model(no_progress)
    print("loading the model twice", flush=True)
    model = load_transformers(path, args.dtype)
    with LLM(
        str(path), dtype=args.dtype, enable_prefix_caching=False, disable_log_stats=True
    ) as llm:
        jobs = make_jobs(args, llm.engine.info.vocab_size)
        contenders = {
            ONE_BY_ONE: transformers_one_by_one(model),
            BATCHED: transformers_batched(model),
            OURS: tokenmill_contender(llm),
        }
        seconds, tokens = measure(contenders, jobs, args.rounds)
        name = llm.engine.model_name
    check_lengths(jobs, tokens)
    result = condense(jobs, seconds, tokens)
    print(
        f"\n{name}, {args.dtype}: {len(jobs)} prompts, {result['prompt_tokens']} tokens in, "
        f"{result['output_tokens']} out; {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, tokenmill {__version__}\n"
    )
    show(result, len(jobs))
    record(args, "throughput", result)


if __name__ == "__main__":
    main()
