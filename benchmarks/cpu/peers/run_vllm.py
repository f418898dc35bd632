"""Runs vLLM's CPU build through its offline API, compiled, on the first `--threads` cores."""

from __future__ import annotations

import os
from collections.abc import Sequence

from worker import parse_args, work
from workloads import Request


def main() -> None:
    args = parse_args()
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{args.threads - 1}"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "4"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    from vllm import LLM, SamplingParams

    llm = LLM(args.model, dtype="bfloat16", max_model_len=2048, enable_prefix_caching=False)

    def answer(requests: Sequence[Request]) -> None:
        params = [
            SamplingParams(temperature=0, max_tokens=r.max_tokens, ignore_eos=True, detokenize=True)
            for r in requests
        ]
        prompts = [{"prompt_token_ids": r.prompt_token_ids} for r in requests]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        made = [len(output.outputs[0].token_ids) for output in outputs]
        assert made == [r.max_tokens for r in requests]

    work(args, answer)


if __name__ == "__main__":
    main()
