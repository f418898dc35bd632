"""The cost of masks: filling and applying those of a step, with the default model's vocabulary.

The rows are answers of one schema, each at another place, as in a running batch.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from tokenmill import Grammar
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.cpu.sampling import NativeSampling
from tokenmill.backends.grammar.base import GrammarSpec, MaskedRows
from tokenmill.backends.grammar.grammars import Grammars, allow_all
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.backends.sampling.masks import RowMasks
from tokenmill.backends.sampling.ops import SamplingOps, TorchSampling
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.default_model import find_default_model

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["small", "large", "old"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
            "required": ["street", "number"],
        },
    },
    "required": ["name", "age", "tags", "address"],
}
ANSWER = (
    '{"name": "Anna Meier", "age": 31, "tags": ["small", "old"], '
    '"address": {"street": "Long Street", "number": 12}}'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    model = find_default_model()
    tokenizer, checkpoint = load_tokenizer(model), open_checkpoint(model)
    ends, size = checkpoint.eos_token_ids, checkpoint.config.vocab_size
    spec = GrammarSpec.of_model(tokenizer.all_token_bytes, tokenizer.special_ids, ends, size)
    begin = time.perf_counter()
    grammars = Grammars(lambda: LLGuidance(spec))
    grammars.compile(Grammar.json_schema(SCHEMA))
    print(f"vocabulary and first grammar: {1e3 * (time.perf_counter() - begin):.0f} ms")
    answer = tokenizer.encode(ANSWER, add_special_tokens=False)
    masks = measure_fill(grammars, answer, spec.num_words, args.rows, args.steps)
    measure_applying(masks, len(spec.token_bytes), args.steps)


def measure_fill(
    grammars: Grammars, answer: list[int], num_words: int, num_rows: int, num_steps: int
) -> RowMasks:
    """Each step follows one more token of each answer; an answer that ends begins again."""
    rng, grammar = random.Random(0), Grammar.json_schema(SCHEMA)
    places = [rng.randrange(len(answer)) for _ in range(num_rows)]
    matchers = [grammars.matcher(grammar, answer[:place]) for place in places]
    masks, seconds = allow_all(num_rows, num_words), []
    for _ in range(num_steps):
        for row, place in enumerate(places):
            if place == len(answer):
                matchers[row], places[row] = grammars.matcher(grammar, ()), 0
            else:
                matchers[row].accept(answer[place : place + 1])
                places[row] += 1
        rows = [
            MaskedRows(matcher=matcher, first_row=row, draft_token_ids=())
            for row, matcher in enumerate(matchers)
        ]
        begin = time.perf_counter()
        masks = allow_all(num_rows, num_words)
        grammars.fill(rows, masks)
        seconds.append(time.perf_counter() - begin)
    assert not any(matcher.error for matcher in matchers)
    print(f"fill {num_rows} masks: {1e3 * statistics.median(seconds):.3f} ms")
    return RowMasks(rows_g=np.arange(num_rows, dtype=np.int64), masks_gw=masks)


def measure_applying(masks: RowMasks, vocab_size: int, num_steps: int) -> None:
    ways: dict[str, SamplingOps] = {
        "native": NativeSampling(load_library()), "torch": TorchSampling()
    }  # fmt: skip
    logits_rv = torch.randn(len(masks.rows_g), vocab_size)
    for name, ops in ways.items():
        cost = median(partial(ops.mask, logits_rv, masks), num_steps)
        print(f"apply them, {name}: {cost:.3f} ms")


def median(work: Callable[[], object], steps: int) -> float:
    """Milliseconds of one call."""
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(seconds)


if __name__ == "__main__":
    main()
