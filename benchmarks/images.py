"""Times images on a CPU: the encoder beside transformers, and what a known image saves.

python benchmarks/images.py --help

The model is random, in the shape of SmolVLM-256M, in bfloat16. The encoders take turns. Prompts go
to one engine, one after the other, and ask for one token: with a new image, with the same image
after the same beginning, with a known image after another beginning, and with as many tokens of
text. Then chats go on while new images arrive, and, in turns, while prompts of text arrive that
cost as much.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from recording import make_parser, make_table, percentile, record, set_threads, summarize_all
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokenmill import AsyncEngine, SamplingParams
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.machine.torch_threads import SingleTorchThread
from tokenmill.backends.media.idefics3.cost import cost_of_tile
from tokenmill.backends.vision.reading import load_vision
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig

oracle: Any = import_module("tests.oracle.tiny_smolvlm")
SmolVLM: Any = transformers.SmolVLMForConditionalGeneration
SIDE = 512
"""Sides of a tile, in pixels."""
NEW, AGAIN, ELSEWHERE, TEXT = "new image", "again", "known, elsewhere", "as much text"
NUM_TILES = 13
"""Of an image."""
NUM_TEXTS = 14
"""Prompts that cost as much as an image."""
MANY_TOKENS = SamplingParams(temperature=0.0, max_tokens=4096, ignore_eos=True)
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
Samples = dict[str, dict[str, list[float]]]


def write_model(folder: Path) -> None:
    """A random SmolVLM-256M with a small vocabulary."""
    tokenizer = oracle.write_tokenizer(folder)
    config = SmolVLM.config_class(
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "pad_token_id": 0,
        },
        vision_config={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": SIDE,
            "patch_size": 16,
        },
        image_token_id=tokenizer.convert_tokens_to_ids(oracle.IMAGE),
        scale_factor=4,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = SmolVLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    images = {"size": {"longest_edge": 4 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    settings = images | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": 64}))


def encoders(folder: Path) -> dict[str, Callable[[torch.Tensor], object]]:
    """Ours, as it runs beside native kernels, and that of transformers. Each takes one tile."""
    spec = LinearSpec(dtype=torch.bfloat16, device=torch.device("cpu"))
    vision = load_vision(
        open_checkpoint(folder),
        EngineConfig(),
        dtype=spec.dtype,
        device=spec.device,
        linear=CPULinear(spec),
        attention=CPUAttention,
    )
    assert vision is not None
    model = SmolVLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def ours(pixels_yxc: torch.Tensor) -> None:
        single = SingleTorchThread()
        try:
            vision.tower.encode(pixels_yxc[None])
        finally:
            single.release()

    def theirs(pixels_yxc: torch.Tensor) -> None:
        numbers = (pixels_yxc.permute(2, 0, 1).float() / 255 - 0.5) / 0.5
        model.model.get_image_features(numbers[None, None].to(torch.bfloat16), return_dict=True)

    return {"tokenmill": ours, "transformers": theirs}


@torch.inference_mode()
def time_encoders(folder: Path, rounds: int) -> Samples:
    """Seconds of one tile, wall clock and CPU."""
    contenders = encoders(folder)
    taken: Samples = {name: {"wall": [], "cpu": []} for name in contenders}
    for turn in range(rounds + 1):  # the first one warms up
        pixels_yxc = torch.randint(256, (SIDE, SIDE, 3), dtype=torch.uint8)
        for name in sorted(contenders, reverse=bool(turn % 2)):
            wall, cpu = time.perf_counter(), time.process_time()
            contenders[name](pixels_yxc)
            if turn:
                taken[name]["wall"].append(time.perf_counter() - wall)
                taken[name]["cpu"].append(time.process_time() - cpu)
    return taken


async def time_engine(folder: Path, args: Namespace) -> tuple[Samples, int, Samples]:
    """What `time_prompts` and `time_chats` return."""
    rng = random.Random(args.seed)
    async with AsyncEngine(str(folder), dtype="bfloat16", disable_log_stats=True) as engine:
        prompts, num_tokens = await time_prompts(engine, args.rounds, rng)
        return prompts, num_tokens, await time_chats(engine, folder, args, num_tokens, rng)


async def time_prompts(engine: AsyncEngine, rounds: int, rng: random.Random) -> tuple[Samples, int]:
    """Seconds until the first token, and the number of tokens of a prompt."""
    taken: Samples = {name: {"ttft": []} for name in (NEW, AGAIN, ELSEWHERE, TEXT)}
    num_tokens = 0
    for turn in range(rounds + 1):
        image = picture(rng.randrange(1 << 30))
        same, other = ({"prompt": f"{rng.random()} {oracle.IMAGE} why"} for _ in range(2))
        prompts: Mapping[str, Any] = {
            NEW: same | {"multi_modal_data": {"image": image}},
            AGAIN: same | {"multi_modal_data": {"image": image}},
            ELSEWHERE: other | {"multi_modal_data": {"image": image}},
            TEXT: None,
        }
        for name, prompt in prompts.items():
            if prompt is None:
                prompt = {"prompt_token_ids": rng.choices(range(1, 250), k=num_tokens)}
            begin = time.perf_counter()
            async for output in engine.generate(prompt, ONE_TOKEN):
                num_tokens = len(output.prompt_token_ids)
            if turn:
                taken[name]["ttft"].append(time.perf_counter() - begin)
        print(f"round {turn} of {rounds}" if turn else "warmed up", flush=True)
    return taken, num_tokens


async def time_chats(
    engine: AsyncEngine, folder: Path, args: Namespace, num_tokens: int, rng: random.Random
) -> Samples:
    """Seconds between the tokens of chats while an image arrives, or texts of its cost; and the
    longest time, of CPU, that the event loop is busy with one thing."""
    config = json.loads((folder / "config.json").read_text())
    cost = num_tokens + NUM_TILES * cost_of_tile(config, SIDE)
    taken: Samples = {name: {"p50": [], "p99": [], "loop": []} for name in (NEW, TEXT)}
    for turn in range(args.chat_rounds + 1):
        for name in sorted(taken, reverse=bool(turn % 2)):
            arrivals: list[Any]
            if name == NEW:
                image = picture(rng.randrange(1 << 30))
                prompt = f"{rng.random()} {oracle.IMAGE} why"
                arrivals = [{"prompt": prompt, "multi_modal_data": {"image": image}}]
            else:
                arrivals = [
                    {"prompt_token_ids": rng.choices(range(1, 250), k=cost // NUM_TEXTS)}
                    for _ in range(NUM_TEXTS)
                ]
            with BusyLoop() as busy:
                gaps = await gaps_of_chats(engine, arrivals, args.chats, rng)
            if turn:
                taken[name]["p50"].append(percentile(gaps, 0.5))
                taken[name]["p99"].append(percentile(gaps, 0.99))
                taken[name]["loop"].append(busy.longest)
        print(f"chats: round {turn} of {args.chat_rounds}", flush=True)
    return taken


async def gaps_of_chats(
    engine: AsyncEngine, arrivals: Sequence[Any], num_chats: int, rng: random.Random
) -> list[float]:
    """Seconds between the tokens of chats, from the arrival of prompts until all are answered."""
    gaps: list[float] = []
    begun, ended = asyncio.Semaphore(0), asyncio.Event()

    async def chat() -> None:
        prompt: Any = {"prompt_token_ids": rng.choices(range(1, 250), k=32)}
        last = 0.0
        async for _ in engine.generate(prompt, MANY_TOKENS):
            now = time.perf_counter()
            if not last:
                begun.release()
            elif arrived:
                gaps.append(now - last)
            last = now
            if ended.is_set():
                return

    async def ask(prompt: Any) -> None:
        async for _ in engine.generate(prompt, ONE_TOKEN):
            pass

    arrived = False
    async with asyncio.TaskGroup() as group:
        for _ in range(num_chats):
            group.create_task(chat())
        for _ in range(num_chats):
            await begun.acquire()
        arrived = True
        await asyncio.gather(*map(ask, arrivals))
        ended.set()
    return gaps


class BusyLoop:
    """Measures the longest time that the event loop's thread computes without a pause."""

    longest = 0.0

    def __enter__(self) -> BusyLoop:
        run = self._run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            begin = time.thread_time()
            run(handle)
            self.longest = max(self.longest, time.thread_time() - begin)

        asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]


def picture(seed: int) -> bytes:
    """A file that becomes 13 tiles."""
    pixels = np.random.default_rng(seed).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).resize((1024, 768)).save(file, "JPEG")
    return file.getvalue()


def main() -> None:
    args = parse_args()
    set_threads(args)
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        tiles = summarize_all(time_encoders(folder, args.rounds))
        prompt_samples, num_tokens, chat_samples = asyncio.run(time_engine(folder, args))
    prompts, chats = summarize_all(prompt_samples), summarize_all(chat_samples)
    show(tiles, prompts, chats, num_tokens)
    found = {"encoder_seconds": tiles, "prompt_seconds": prompts, "prompt_tokens": num_tokens}
    record(args, "images", found | {"chat_seconds": chats})


def show(
    tiles: Mapping[str, Any], prompts: Mapping[str, Any], chats: Mapping[str, Any], num_tokens: int
) -> None:
    """Print the medians."""
    table = make_table("one tile", "s", "CPU s", "images per second to transformers'")
    slowest = tiles["transformers"]["wall"]["median"]
    for name, times in tiles.items():
        wall, cpu = times["wall"]["median"], times["cpu"]["median"]
        table.add_row(name, f"{wall:.3f}", f"{cpu:.3f}", f"{slowest / wall:.2f}")
    Console().print(table)
    table = make_table(f"TTFT, {num_tokens} tokens", "s", "to a new image")
    for name, times in prompts.items():
        seconds = times["ttft"]["median"]
        table.add_row(name, f"{seconds:.3f}", f"1/{prompts[NEW]['ttft']['median'] / seconds:.1f}")
    Console().print(table)
    table = make_table("chats beside", "p50 ITL s", "p99 ITL s", "to text", "event loop s")
    for name, times in chats.items():
        p50, p99, loop = (times[figure]["median"] for figure in ("p50", "p99", "loop"))
        ratio = p99 / chats[TEXT]["p99"]["median"]
        table.add_row(name, f"{p50:.3f}", f"{p99:.3f}", f"{ratio:.2f}", f"{loop:.4f}")
    Console().print(table)


def parse_args() -> Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, after one to warm up")
    parser.add_argument("--chat-rounds", type=int, default=3, help="as --rounds, with chats")
    parser.add_argument("--chats", type=int, default=8, help="chats that images arrive beside")
    parser.add_argument("--threads", type=int, help="torch's threads; None: torch's choice")
    return parser.parse_args()


if __name__ == "__main__":
    main()
