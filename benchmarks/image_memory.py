"""Compares the memory that `tokenmill model inspect` predicts for images with the measured memory.

python benchmarks/image_memory.py --help

Models are random, in bfloat16: one in the shape of SmolVLM-256M, and the vision tower of Gemma 3 4B
with a small text model. A fresh process for each limit loads the tower, takes the pixels of the
largest prompt, and encodes them. It encodes with the first layer only: the other layers would use
the same memory, one after the other. glibc is set to return large freed memory at once, so memory
that it would keep for later use does not count. The program measures the growth of the process by
the tower, by the pixels, by the encoder cache (with all memory that the first run keeps), and at
the peak of one run of the encoder. The total is the growth until the highest point.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from images import oracle
from images import write_model as write_smolvlm
from recording import make_parser, make_table, record
from rich.console import Console

from tokenmill.assembly import inspect_model
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.machine.torch_threads import SingleTorchThread
from tokenmill.backends.vision.encoded_items import EncodedItems
from tokenmill.backends.vision.reading import find_vision, load_vision
from tokenmill.backends.vision.siglip.tower import VisionTower
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import no_progress
from tokenmill.core.plan import MediaWork
from tokenmill.core.processes.free_memory import return_free_memory
from tokenmill.core.requests.media import MediaItem

MIB = 1 << 20
PARTS = ("tower", "pixels", "cache", "encoder")
LIMITS: Mapping[str, list[dict[str, Any]]] = {
    "SmolVLM-256M": [
        {"image": 2},
        {"image": 8},
        {"image": {"count": 8, "width": 2048, "height": 512}},
    ],
    "Gemma 3 4B": [{"image": 2}, {"image": 8}],
}
"""Models, and values of --limit-mm-per-prompt."""
Gemma3: Any = transformers.Gemma3ForConditionalGeneration


def write_gemma3(folder: Path) -> None:
    """The vision tower of Gemma 3 4B, with a small text model of the same hidden size."""
    gemma: Any = __import__("tests.oracle.tiny_gemma3", fromlist=["SPECIAL"])
    tokenizer = oracle.write_tokenizer(
        folder, special=gemma.SPECIAL, template=gemma.TEMPLATE, bos_token="<bos>"
    )
    number = tokenizer.convert_tokens_to_ids
    config = Gemma3.config_class(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 2560,
            "intermediate_size": 256,
            "num_hidden_layers": 1,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "layer_types": ["full_attention"],
            "pad_token_id": 0,
            "bos_token_id": number("<bos>"),
        },
        vision_config={
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 896,
            "patch_size": 14,
            "vision_use_head": False,
        },
        mm_tokens_per_image=256,
        image_token_index=number(gemma.IMAGE),
        boi_token_index=number(gemma.BEGIN),
        eoi_token_index=number(gemma.END),
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    Gemma3(config).save_pretrained(folder)
    torch.set_default_dtype(torch.float32)
    sides = {"size": {"height": 896, "width": 896}}
    (folder / "preprocessor_config.json").write_text(json.dumps(sides))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": 256}))


WRITERS = {"SmolVLM-256M": write_smolvlm, "Gemma 3 4B": write_gemma3}


def status(name: str) -> int:
    """The value of a line of /proc/self/status, in bytes."""
    text = Path("/proc/self/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def peak_from_now_on() -> int:
    """Reset the peak of the resident memory. Returns the resident memory in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


@torch.inference_mode()
def measure(folder: Path, limit: dict[str, Any]) -> dict[str, int]:
    """Measure the bytes of each part in this process, and their total at the highest point."""
    SingleTorchThread()  # as when native kernels are used; for the rest of this process
    _warm_up()
    spec = LinearSpec(dtype=torch.bfloat16, device=torch.device("cpu"))
    checkpoint = open_checkpoint(folder)
    config = EngineConfig.from_options(limit_mm_per_prompt=limit)
    found = find_vision(checkpoint, config, spec.dtype)
    assert found is not None
    start = resident()
    vision = load_vision(
        checkpoint,
        config,
        dtype=spec.dtype,
        device=spec.device,
        linear=CPULinear(spec),
        attention=CPUAttention,
    )
    assert vision is not None and isinstance(vision.tower, VisionTower)
    tower = resident() - start
    items = EncodedItems(replace(vision.tower, layers=vision.tower.layers[:1]))
    shape = (*found.largest.run_shape, 3)
    tiles_per_image = found.largest.pixel_bytes // math.prod(shape)
    num_tiles = config.image_limit.count * tiles_per_image
    taken = [
        MediaItem(
            digest=number.to_bytes(4, "little"),
            start=0,
            num_tokens=found.largest.num_tokens // tiles_per_image,
            cost=1,
            shape=shape,
            pixels=os.urandom(math.prod(shape)),
        )
        for number in range(num_tiles)
    ]
    items.take(taken)
    pixels = resident() - start - tower
    before, peak = peak_from_now_on(), 0
    for item in taken:
        now = peak_from_now_on()
        items.encode(MediaWork(evict=(), release=(), encode=(item.digest,)))
        peak = max(peak, status("VmHWM") - now)
    highest = status("VmHWM") - before + tower + pixels
    cache = resident() - start - tower - pixels
    return {"tower": tower, "pixels": pixels, "cache": cache, "encoder": peak, "total": highest}


def resident() -> int:
    """Bytes of this process's own memory, without what is free in its heaps."""
    return_free_memory()
    return status("RssAnon")


def _warm_up() -> None:
    """Load the libraries, threads and their memory, which every run needs."""
    with TemporaryDirectory() as name:
        folder = oracle.write_model(Path(name))
        spec = LinearSpec(dtype=torch.bfloat16, device=torch.device("cpu"))
        vision = load_vision(
            open_checkpoint(folder),
            EngineConfig(),
            dtype=spec.dtype,
            device=spec.device,
            linear=CPULinear(spec),
        )
        assert vision is not None
        vision.tower.encode(torch.zeros((1, 64, 64, 3), dtype=torch.uint8))


def predict(folder: Path, limit: dict[str, Any]) -> dict[str, int]:
    """What `tokenmill model inspect` shows."""
    config = EngineConfig.from_options(
        model=str(folder), dtype="bfloat16", device="cpu", limit_mm_per_prompt=limit
    )
    images = inspect_model(config, no_progress).images
    assert images is not None
    return {**{name: asdict(images)[name] for name in PARTS}, "total": images.total}


def run_process(folder: Path, limit: dict[str, Any]) -> dict[str, int]:
    command = [sys.executable, __file__, "--measure", str(folder), json.dumps(limit)]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    figures: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare() -> list[dict[str, Any]]:
    found = []
    for model, limits in LIMITS.items():
        with TemporaryDirectory() as name:
            WRITERS[model](Path(name))
            for limit in limits:
                predicted, measured = predict(Path(name), limit), run_process(Path(name), limit)
                print(model, json.dumps(limit), flush=True)
                found.append(
                    {
                        "model": model,
                        "limit": limit,
                        "predicted": predicted,
                        "measured": measured,
                        "measured_to_predicted": round(measured["total"] / predicted["total"], 4),
                    }
                )
    return found


def show(found: list[dict[str, Any]]) -> None:
    """Print MiB, predicted / measured."""
    table = make_table("model, limit", *PARTS, "total", "measured to predicted")
    for row in found:
        both = row["predicted"], row["measured"]
        cells = (" / ".join(f"{one[name] / MIB:.1f}" for one in both) for name in (*PARTS, "total"))
        name = f"{row['model']}, {json.dumps(row['limit'])}"
        table.add_row(name, *cells, f"{row['measured_to_predicted']:.3f}")
    Console(width=200).print(table)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "LIMIT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        folder, limit = args.measure
        print(json.dumps(measure(Path(folder), json.loads(limit))))
        return
    found = compare()
    show(found)
    record(args, "image_memory", {"bytes": found})


if __name__ == "__main__":
    main()
