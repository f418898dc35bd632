"""Runs transformers' `generate` with one padded batch, as long as its longest answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from worker import parse_args, work
from workloads import Request


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = None  # cheaper than masking it in every step
    model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def answer(requests: Sequence[Request]) -> None:
        longest = max(len(r.prompt_token_ids) for r in requests)
        padding = [longest - len(r.prompt_token_ids) for r in requests]
        rows = [[0] * n + r.prompt_token_ids for n, r in zip(padding, requests, strict=True)]
        mask = [[0] * n + [1] * (longest - n) for n in padding]
        max_tokens = max(r.max_tokens for r in requests)
        made = model.generate(
            input_ids=torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
        assert made.shape[1] == longest + max_tokens

    work(args, answer)


if __name__ == "__main__":
    main()
