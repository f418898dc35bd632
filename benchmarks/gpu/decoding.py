"""Times the whole engine while it decodes, with captured graphs and without, or transformers.

python benchmarks/gpu/decoding.py --help

The model is random, in the shape of Llama-3.2-1B, in bfloat16. All requests have prompts of 512
tokens and arrive together. The time of a step is that of all answers, less that of answers of one
token, divided by the other tokens. The modes take turns; the shortest time of all rounds counts.
"""

from __future__ import annotations

import json
import random
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from random_models import SHAPES, Shape, write_safetensors

from tokenmill import LLM, SamplingParams

TINY = Shape(hidden=512, inner=1024, layers=4, heads=8, kv_heads=4, head_size=64, vocabulary=8192)
MODEL = "model"
TRANSFORMERS = "transformers"
ROUNDS = 2

Generate = Callable[[Sequence[Sequence[int]], int], object]
"""generate(prompts, num_tokens): greedily, no answer ends early."""


def main() -> None:
    args = parse_args()
    if args.contender == MODEL:
        write_safetensors(args.model, TINY if args.miniature else SHAPES["1B"], seed=0)
        return
    prompt_tokens, num_tokens = (16, 8) if args.miniature else (512, 32)
    modes = transformers_modes(args) if args.contender == TRANSFORMERS else our_modes(args)
    rng = random.Random(0)
    for num_requests in (1, 2) if args.miniature else (1, 32, 128):
        prompts = [rng.choices(range(256, 8192), k=prompt_tokens) for _ in range(num_requests)]
        for mode, seconds in measure(modes, prompts, num_tokens).items():
            line = {
                "contender": args.contender,
                "mode": mode,
                "num_requests": num_requests,
                "milliseconds": seconds * 1000,
            }
            with args.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"{args.contender}, {mode}, {num_requests} requests: {seconds * 1000:.2f} ms per "
                "step",
                flush=True,
            )


def measure(
    modes: Mapping[str, Generate], prompts: Sequence[Sequence[int]], num_tokens: int
) -> dict[str, float]:
    """Seconds of one step of decodes, by mode."""
    best = dict.fromkeys(modes, float("inf"))
    for turn in range(ROUNDS + 1):
        for mode, generate in modes.items():
            times = []
            for count in (1, num_tokens):
                start = time.perf_counter()
                generate(prompts, count)
                times.append(time.perf_counter() - start)
            if turn:  # the first round compiles
                best[mode] = min(best[mode], (times[1] - times[0]) / (num_tokens - 1))
    return best


def our_modes(args: Namespace) -> dict[str, Generate]:
    """Two engines with one backend."""

    def make(enforce_eager: bool) -> Generate:
        llm = LLM(
            str(args.model),
            device=args.device,
            dtype="bfloat16",
            attention_backend=args.contender,
            enable_prefix_caching=False,
            enforce_eager=enforce_eager,
            gpu_memory_utilization=0.3,
        )

        def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
            params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
            llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)

        return generate

    return {"graphs": make(False), "no graphs": make(True)}


def transformers_modes(args: Namespace) -> dict[str, Generate]:
    """One batch in transformers."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    model = model.to(args.device).eval()

    def generate(prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        ids = torch.tensor(prompts, device=args.device)
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
            ).tolist()

    return {"one batch": generate}


def parse_args() -> Namespace:
    parser = ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "contender", help=f"an attention backend, {TRANSFORMERS}, or {MODEL}: only make the model"
    )
    parser.add_argument("--output", type=Path, required=True, help="file to append lines to")
    parser.add_argument("--model", type=Path, required=True, help="the model's folder")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--miniature", action="store_true", help="a tiny model, to rehearse")
    return parser.parse_args()


if __name__ == "__main__":
    main()
