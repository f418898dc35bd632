"""Measures what each value of --dtype costs a model in float32 or float16: exactness and speed.

python benchmarks/precisions.py --help

The model's numbers are written to a directory in float32, and to another one in float16. For each
token of a text, the log-probability that the engine computes is compared with that of transformers'
model in float32 with the numbers of the same directory. The engine runs as it does in a server:
with its own kernels, attention and KV cache. Speeds are those of one answer at a time, and of a
long prompt; the engines of one directory take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from formats import TEXT, of_next
from recording import make_parser, record, set_threads
from rich.console import Console
from rich.table import Table
from throughput import load_transformers
from transformers import AutoTokenizer

from tokenmill import LLM, SamplingParams
from tokenmill.assembly import verify_default_model
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.core.interfaces import no_progress

STORED = {"float32": torch.float32, "float16": torch.float16}
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(kw_only=True)
class Choice:
    """An engine with one value of --dtype."""

    dtype: str
    llm: LLM
    log_probabilities: torch.Tensor
    prompt_rates: list[float] = field(default_factory=list)
    answer_rates: list[float] = field(default_factory=list)


def write(model: Any, source: Path, dtype: torch.dtype, folder: Path) -> None:
    """Write a model and its tokenizer as a Hugging Face directory."""
    model.to(dtype).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)


def by_transformers(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    model = load_transformers(folder, "float32")
    with torch.inference_mode():
        return of_next(model(torch.tensor([token_ids])).logits[0], torch.tensor(token_ids))


def by_engine(llm: LLM, token_ids: Sequence[int]) -> torch.Tensor:
    """Log-probability of each token but the first, float64."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([list(token_ids)], params, use_tqdm=False)
    known = [one.logprob for one in output.prompt_logprobs or () if one is not None]
    return torch.tensor(known, dtype=torch.float64)


def rate(llm: LLM, prompt: Sequence[int], num_output_tokens: int) -> float:
    """Tokens per second: of the prompt if there is one output token, else of the answer."""
    params = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
    begin = time.perf_counter()
    llm.generate([list(prompt)], params, use_tqdm=False)
    number = len(prompt) if num_output_tokens == 1 else num_output_tokens
    return number / (time.perf_counter() - begin)


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    token_ids = load_tokenizer(folder).encode(TEXT.read_text("utf-8"))[: args.tokens]
    choices = []
    for dtype in DTYPES:
        llm = LLM(model=str(folder), dtype=dtype, enable_prefix_caching=False)
        choices.append(Choice(dtype=dtype, llm=llm, log_probabilities=by_engine(llm, token_ids)))
    exact = by_transformers(folder, token_ids)
    for _ in range(args.rounds):
        for one in choices:
            one.prompt_rates.append(rate(one.llm, token_ids, 1))
            one.answer_rates.append(rate(one.llm, token_ids[:16], args.output_len))
    found = {}
    for one in choices:
        difference = (one.log_probabilities - exact).abs()
        found[one.dtype] = {
            "mean_difference": float(f"{float(difference.mean()):.2g}"),
            "largest_difference": float(f"{float(difference.max()):.2g}"),
            "prompt_tokens_per_second": round(statistics.median(one.prompt_rates), 1),
            "answer_tokens_per_second": round(statistics.median(one.answer_rates), 1),
        }
        one.llm.close()
    return found


def show(found: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(title="Log-probabilities and tokens per second by --dtype")
    titles = ("file", "--dtype", "mean difference", "largest", "prompt tok/s", "answer tok/s")
    for title in titles:
        table.add_column(title, justify="left" if title in titles[:2] else "right")
    for stored, choices in found.items():
        for dtype, one in choices.items():
            table.add_row(stored, dtype, *(f"{value:g}" for value in one.values()))
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, help=".gguf file; None: the default model")
    parser.add_argument("--threads", type=int, help="computing threads; None: torch's choice")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the text")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each speed")
    args = parser.parse_args()
    set_threads(args)
    console = Console()
    source = args.model or verify_default_model(no_progress)
    found = {}
    with TemporaryDirectory() as parent:
        for name, dtype in STORED.items():
            folder = Path(parent) / name
            write(load_transformers(source, "float32"), source, dtype, folder)
            found[name] = measure(folder, args)
    show(found, console)
    figures = {"instruction_set": load_library().instruction_set, "files": found}
    record(args, "precisions", figures)


if __name__ == "__main__":
    main()
