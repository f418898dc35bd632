"""Runs tokenmill through its offline API."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from worker import parse_args, work
from workloads import Request

from tokenmill import LLM, SamplingParams


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    llm = LLM(
        args.model,
        dtype="bfloat16" if args.precision == "bf16" else "auto",
        enable_prefix_caching=False,
        disable_log_stats=True,
    )

    def answer(requests: Sequence[Request]) -> None:
        params = [
            SamplingParams(temperature=0, max_tokens=r.max_tokens, ignore_eos=True)
            for r in requests
        ]
        outputs = llm.generate([r.prompt_token_ids for r in requests], params, use_tqdm=False)
        made = [len(output.outputs[0].token_ids) for output in outputs]
        assert made == [r.max_tokens for r in requests]

    work(args, answer)


if __name__ == "__main__":
    main()
