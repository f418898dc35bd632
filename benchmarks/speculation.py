"""Measures speculative decoding: tokens per second with and without it, and accepted drafts.

For each workload and batch size, all contenders answer the same prompts in turn, in an order that
changes from round to round. The ratio of a contender is its speed divided by the speed without
speculation in the same round; the table shows medians over the rounds. Two engines run without
speculation, the first and the last one. The divisor is the mean of both, and their difference shows
the noise. Prompts are in the prefix cache of every contender, so that nearly only decoding is
measured. There are always as many answers in progress as the batch size: when one ends, the next
one begins. When no answer is left to begin, the clock stops and the remaining ones are cut. If all
began and ended together, each would wait for the one with the fewest accepted drafts.

A small model repeats itself when it is greedy, and repetition is easy to draft. So each answer is
cut where its first 20-gram begins a second time, which is found once, without speculation. It is
then cut to a random length of at least half of that, the same in all rounds, because answers of one
length would end together.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from recording import make_parser, record, summarize
from rich.console import Console
from rich.table import Table
from speculation_workloads import Task, chatting, copying
from tqdm import tqdm

from tokenmill import AsyncEngine, OutputKind, RequestOutput, SamplingParams

WITHOUT = ("off", "off again")
LOOP = 20
"""Number of tokens. An answer that contains such a sequence twice repeats itself."""
MIN_LEN = 16
"""Minimum number of tokens before the repetition. Tasks with fewer are left out."""
WAVES = 2
"""Answers in a round for each place of the batch. A round has at least four answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One prompt, and the parameters of its answer."""

    prompt: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The figures of one contender in one round."""

    tokens_per_second: float
    num_draft_tokens: int
    num_accepted_tokens: int


Rounds = dict[str, list[Round]]
"""The rounds of each contender, in the same order."""


async def answer(engine: AsyncEngine, works: Sequence[Work]) -> list[Any]:
    """Answer all works at the same time; returns their last outputs."""

    async def one(work: Work) -> Any:
        async for output in engine.generate(work.prompt, work.params):
            last = output
        return last

    return await asyncio.gather(*map(one, works))


async def prepare(
    engine: AsyncEngine, tasks: Sequence[Task], args: argparse.Namespace
) -> list[Work]:
    """Make works of tasks: tokenize, answer once, and cut. Copying tasks have temperature 0."""
    temperature = args.temperature if not tasks[0].answer_begin else 0.0
    prompts = [encode(engine, task) for task in tasks]
    drafts = [
        Work(prompt=prompt, params=make_params(args.output_len, temperature, False))
        for prompt in prompts
    ]
    outputs = await answer(engine, drafts)
    lengths = [len_without_loop(output.outputs[0].token_ids) for output in outputs]
    rng = random.Random(args.seed)
    return [
        Work(prompt=prompt, params=make_params(draw_length(length, rng), temperature, True))
        for prompt, length in zip(prompts, lengths, strict=True)
        if length >= MIN_LEN
    ]


def encode(engine: AsyncEngine, task: Task) -> list[int]:
    messages = [{"role": "user", "content": task.question}]
    if not task.answer_begin:
        return engine.tokenizer.encode_chat(messages)
    messages.append({"role": "assistant", "content": task.answer_begin})
    return engine.tokenizer.encode_chat(
        messages, add_generation_prompt=False, continue_final_message=True
    )


def make_params(max_tokens: int, temperature: float, ignore_eos: bool) -> SamplingParams:
    return SamplingParams(
        temperature=temperature,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        output_kind=OutputKind.FINAL,
    )


def draw_length(length: int, rng: random.Random) -> int:
    """A random length between half of `length` and `length`."""
    return rng.randint((length + 1) // 2, length)


def len_without_loop(token_ids: Sequence[int]) -> int:
    """The number of tokens before the first 20-gram that occurs a second time."""
    seen: set[tuple[int, ...]] = set()
    for start in range(len(token_ids) - LOOP + 1):
        gram = tuple(token_ids[start : start + LOOP])
        if gram in seen:
            return start
        seen.add(gram)
    return len(token_ids)


async def measure(
    engines: Mapping[str, AsyncEngine], works: Sequence[Work], batch: int, num_rounds: int
) -> Rounds:
    """Run all contenders over the same works, `batch` at a time. The first round does not count."""
    names = list(engines)
    rounds: Rounds = {name: [] for name in names}
    num_works = max(4, WAVES * batch)
    for number in range(num_rounds + 1):
        chosen = [works[(number * num_works + i) % len(works)] for i in range(num_works)]
        order = random.Random(number).sample(names, len(names))
        for name in order:
            await answer(engines[name], [cut(work, 8) for work in chosen])  # fills caches
            rounds[name].append(await run(engines[name], chosen, batch))
    return {name: found[1:] for name, found in rounds.items()}


def cut(work: Work, max_tokens: int) -> Work:
    return Work(prompt=work.prompt, params=make_params(max_tokens, 0.0, True))


async def run(engine: AsyncEngine, works: Sequence[Work], batch: int) -> Round:
    """Measure the speed while `batch` answers are in progress, then cut the remaining ones."""
    outputs: dict[str, RequestOutput] = {}
    begun: list[str] = []
    waiting = iter(works)

    async def answer_in_turn() -> None:
        for work in waiting:
            stream = await engine.submit(work.prompt, work.params)
            begun.append(stream.request_id)
            async for output in stream:
                outputs[stream.request_id] = output

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        places = [group.create_task(answer_in_turn()) for _ in range(batch)]
        await asyncio.wait(places, return_when=asyncio.FIRST_COMPLETED)
        seconds = time.perf_counter() - started
        for request_id in begun:
            await engine.abort(request_id)
    metrics = [output.metrics for output in outputs.values() if output.metrics is not None]
    return Round(
        tokens_per_second=sum(len(o.outputs[0].token_ids) for o in outputs.values()) / seconds,
        num_draft_tokens=sum(m.num_draft_tokens for m in metrics),
        num_accepted_tokens=sum(m.num_accepted_tokens for m in metrics),
    )


async def compare(args: argparse.Namespace) -> dict[str, dict[str, dict[str, object]]]:
    """All figures, by workload and batch size, then by contender."""
    first, last = WITHOUT
    contenders: dict[str, dict[str, Any]] = {first: {}}
    methods: dict[str, dict[str, Any]] = {"ngram": {"speculative_method": "ngram"}}
    if args.speculative_model:
        methods["draft-model"] = {"speculative_model": args.speculative_model}
    for (method, options), draft_length in itertools.product(methods.items(), args.draft_length):
        name = method if len(args.draft_length) == 1 else f"{method}, {draft_length}"
        contenders[name] = {**options, "draft_length": draft_length}
        if args.num_speculative_tokens:
            contenders[name]["num_speculative_tokens"] = args.num_speculative_tokens
    contenders[last] = {}
    common = {"dtype": args.dtype, "disable_log_stats": True, "kv_cache_memory": 512 << 20}
    rng = random.Random(args.seed)
    workloads = {"copying": copying(rng), "chat": chatting(rng)}
    found: dict[str, dict[str, dict[str, object]]] = {}
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(AsyncEngine(args.model, **common, **options))
            for name, options in contenders.items()
        }
        parts = [(name, batch) for name in args.workloads for batch in args.batches]
        works = {
            name: await prepare(engines[first], workloads[name], args) for name in args.workloads
        }
        for name, batch in tqdm(parts, desc="workloads", disable=None):
            rounds = await measure(engines, works[name], batch, args.rounds)
            without = mean_speeds([rounds[contender] for contender in WITHOUT])
            found[f"{name}, batch {batch}"] = {
                contender: describe(own, without) for contender, own in rounds.items()
            }
    return found


def mean_speeds(contenders: Sequence[Sequence[Round]]) -> list[float]:
    """The contenders' mean tokens per second in each round."""
    return [
        sum(one.tokens_per_second for one in same) / len(same)
        for same in zip(*contenders, strict=True)
    ]


def describe(own: Sequence[Round], without: Sequence[float]) -> dict[str, object]:
    drafted = sum(r.num_draft_tokens for r in own)
    accepted = sum(r.num_accepted_tokens for r in own)
    return {
        "tokens_per_second": summarize([r.tokens_per_second for r in own]),
        "speedup": summarize(
            [r.tokens_per_second / speed for r, speed in zip(own, without, strict=True)]
        ),
        "num_draft_tokens": drafted,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
    }


def show(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    table = Table("workload", "contender", "tokens/s", "ratio", "lowest", "highest", "accepted")
    for workload, contenders in found.items():
        for name, figures in contenders.items():
            speedup, rate = figures["speedup"], figures["acceptance_rate"]
            table.add_row(
                workload,
                name,
                f"{figures['tokens_per_second']['median']:.0f}",
                *(f"{speedup[key]:.2f}" for key in ("median", "lowest", "highest")),
                "" if rate is None else f"{rate:.0%} of {figures['num_draft_tokens']}",
            )
    Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument("--dtype", default="bfloat16", help="auto keeps quantized weights")
    parser.add_argument("--speculative-model", help="a draft model, as one more contender")
    parser.add_argument("--num-speculative-tokens", type=int, help="None: the default")
    parser.add_argument(
        "--draft-length",
        nargs="+",
        default=["adaptive"],
        help="policies to compare; one of another commit can be installed as a plugin",
    )
    parser.add_argument("--workloads", nargs="+", default=["copying", "chat"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--output-len", type=int, default=128, help="maximum tokens of an answer")
    parser.add_argument("--temperature", type=float, default=0.7, help="temperature of chats")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each workload and batch")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    found = asyncio.run(compare(args))
    show(found)
    record(args, "speculation", {"workloads": found})


if __name__ == "__main__":
    main()
