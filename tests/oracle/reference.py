"""What transformers generates: the oracle of greedy fp32 numerics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .prompts import OraclePrompt

NEAR_TIE = 1e-4
"""A difference is excused where the reference's best two logits are nearer than this."""
BATCH = 16


@dataclass(frozen=True, slots=True)
class ReferenceCase:
    """One prompt and its greedy continuation by transformers."""

    prompt: OraclePrompt
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]

    def shortened(self, num_tokens: int) -> ReferenceCase:
        """Only the first tokens of the continuation."""
        return replace(self, token_ids=self.token_ids[:num_tokens])


class Reference:
    """transformers' model and tokenizer, loaded by transformers from the same file."""

    def __init__(self, gguf: Path) -> None:
        source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        self.tokenizer: Any = AutoTokenizer.from_pretrained(**source)
        self.model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
        self.model.generation_config.eos_token_id = None  # every prompt gets its full length
        self.tokenizer.padding_side = "left"

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
        order = sorted(
            range(len(prompts)), key=lambda i: (prompts[i].num_tokens, len(prompts[i].text))
        )
        cases: dict[int, ReferenceCase] = {}
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            ids = [self.encode(prompts[i]) for i in batch]
            num_tokens = max(prompts[i].num_tokens for i in batch)
            for i, prompt_ids, tokens in zip(
                batch, ids, self._greedy(ids, num_tokens), strict=True
            ):
                cases[i] = ReferenceCase(prompts[i], prompt_ids, tokens[: prompts[i].num_tokens])
        return [cases[i] for i in range(len(prompts))]

    def _greedy(self, ids: list[tuple[int, ...]], num_tokens: int) -> list[tuple[int, ...]]:
        padded = self.tokenizer.pad({"input_ids": [list(i) for i in ids]}, return_tensors="pt")
        with torch.inference_mode():
            out = self.model.generate(**padded, max_new_tokens=num_tokens, do_sample=False)
        return [tuple(row) for row in out[:, padded.input_ids.shape[1] :].tolist()]

    def gap(self, token_ids: Sequence[int]) -> float:
        """Difference between the best two logits for the token that follows."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([list(token_ids)])).logits[0, -1]
        best = logits.topk(2).values
        return float(best[0] - best[1])
