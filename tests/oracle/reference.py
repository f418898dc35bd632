"""The oracle of greedy float32 numerics: transformers, loaded on first use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .prompts import OraclePrompt

BATCH = 40
BATCH_TOKENS = 2000
"""Most rows of a batch, and most prompt tokens with the padding, which costs as much as they do."""


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """One prompt and its greedy continuation by transformers."""

    name: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]

    def shortened(self, num_tokens: int) -> ReferenceCase:
        """Only the first tokens of the continuation."""
        return replace(self, token_ids=self.token_ids[:num_tokens])


def continue_greedily(
    model: Any, prompts: Sequence[Sequence[int]], num_tokens: int
) -> list[tuple[int, ...]]:
    """transformers' own `generate` for one batch, padded on the left; nothing ends it early."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + [*prompt] for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False)
    return [tuple(row) for row in out[:, longest:].tolist()]


def gap(model: Any, token_ids: Sequence[int]) -> float:
    """Difference between the best two logits for the token that follows."""
    with torch.inference_mode():
        logits = model(torch.tensor([list(token_ids)])).logits[0, -1]
    best = logits.topk(2).values
    return float(best[0] - best[1])


class Reference:
    """transformers' model and tokenizer, loaded by transformers from the same file when needed."""

    def __init__(self, gguf: Path) -> None:
        self._source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(**self._source)

    @cached_property
    def model(self) -> Any:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(**self._source, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None  # every prompt gets its full length
        model.generation_config.pad_token_id = 0
        return model

    def gap(self, token_ids: Sequence[int]) -> float:
        """See the function `gap`."""
        return gap(self.model, token_ids)

    def encode(self, prompt: OraclePrompt) -> tuple[int, ...]:
        """Token ids by transformers' tokenizer and chat template."""
        if not prompt.is_chat:
            return tuple(self.tokenizer(prompt.text).input_ids)
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}], add_generation_prompt=True, tokenize=False
        )
        return tuple(self.tokenizer(text).input_ids)

    def generate(self, prompts: Sequence[OraclePrompt]) -> list[ReferenceCase]:
        """Greedy continuations, in the order of the prompts, in batches of like length."""
        ids = [self.encode(prompt) for prompt in prompts]
        cases: dict[int, ReferenceCase] = {}
        for batch in _batches(prompts, ids):
            num_tokens = prompts[batch[0]].num_tokens
            outputs = continue_greedily(self.model, [ids[i] for i in batch], num_tokens)
            for i, output in zip(batch, outputs, strict=True):
                cases[i] = ReferenceCase(prompts[i].text[:40], ids[i], output)
        return [cases[i] for i in range(len(prompts))]


def _batches(prompts: Sequence[OraclePrompt], ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Numbers of prompts that are continued together: as many tokens each, and of like length."""
    order = sorted(range(len(prompts)), key=lambda i: (prompts[i].num_tokens, len(ids[i])))
    batch: list[int] = []
    for i in order:
        is_full = len(batch) == BATCH or (len(batch) + 1) * len(ids[i]) > BATCH_TOKENS
        if batch and (is_full or prompts[i].num_tokens != prompts[batch[0]].num_tokens):
            yield batch
            batch = []
        batch.append(i)
    yield batch
