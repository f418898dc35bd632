"""Measures what weight formats cost a model: bits per weight, and the perplexity of a text.

python benchmarks/formats.py --help

The projections of all layers are rounded to each format. Perplexity is computed from the
dequantized weights in float32, and by the CPU kernels from the packed weights in bfloat16 where
they keep the format. AWQ, GPTQ and compressed-tensors differ in how they choose integers and
scales; here these are the nearest ones, so calibrated checkpoints have lower perplexities.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Kind
from recording import make_parser, record, set_threads
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tokenmill.assembly import verify_default_model
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.models.decoder import Decoder
from tokenmill.backends.models.loader import load_decoder
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.formats.bits import pack_nibbles
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.formats.grouped_ints import grouped_ints
from tokenmill.backends.weights.formats.quantizing import kind_on_load, quantize
from tokenmill.backends.weights.formats.scaled_fp8 import scaled_fp8
from tokenmill.backends.weights.packed import PackedWeights, Weights
from tokenmill.core.interfaces import no_progress

TEXT = Path(__file__).parents[1] / "tests" / "oracle" / "texts" / "pride_and_prejudice.txt"
Rounding = Callable[[torch.Tensor], Weights]
"""Rounds a matrix in float32."""


def loaded(weights: torch.Tensor, name: str) -> Weights:
    """A matrix as --quantize-on-load leaves it."""
    kind = kind_on_load(name, weights.shape[1])
    return weights if kind is None else quantize(weights, kind)


def to_gguf(kind: Kind, weights: torch.Tensor) -> Weights:
    blocks = torch.from_numpy(gguf.quants.quantize(weights.numpy(), kind))
    return PackedWeights(GGUFBlocks(kind), (weights.shape[0], weights.shape[1]), (blocks,))


def to_integers(
    bits: int, group_size: int | None, has_zeros: bool, weights: torch.Tensor
) -> Weights:
    """The nearest integers; scales in float16."""
    size, top = group_size or weights.shape[1], 2**bits - 1
    x = weights.reshape(weights.shape[0], -1, size)
    low, high = x.amin(-1).clamp(max=0), x.amax(-1).clamp(min=0)
    reach = high - low if has_zeros else 2 * torch.maximum(-low, high)
    scales = (reach / top).half()
    zeros = (-low / scales.float()).round() if has_zeros else torch.full_like(low, (top + 1) // 2)
    q = (x / scales.float().unsqueeze(-1)).round() + zeros.unsqueeze(-1)
    integers = q.clamp(0, top).to(torch.uint8).flatten(1)
    return grouped_ints(
        (weights.shape[0], weights.shape[1]),
        bits=bits,
        group_size=group_size,
        integers=pack_nibbles(integers) if bits == 4 else integers,
        scales=scales,
        zeros=zeros.to(torch.uint8),
    )


def to_fp8(block: tuple[int, int], weights: torch.Tensor) -> Weights:
    """Each block's largest number becomes 448; 0 stands for the matrix's size."""
    rows, columns = block[0] or weights.shape[0], block[1] or weights.shape[1]
    padded = F.pad(weights, (0, -weights.shape[1] % columns, 0, -weights.shape[0] % rows))
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scales = blocks.abs().amax((1, 3)) / 448
    spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    stored = weights / spread[: weights.shape[0], : weights.shape[1]]
    return scaled_fp8(stored.to(torch.float8_e4m3fn), scales, (rows, columns))


FORMATS: Mapping[str, Rounding] = {
    "bfloat16": lambda weights: weights.to(torch.bfloat16),
    **{
        name: partial(to_gguf, Kind[name])
        for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")
    },
    **{
        f"--quantize-on-load {name}": partial(loaded, name=name)
        for name in ("q8_0", "q4_0", "q4_k")
    },
    "int4, groups of 32": partial(to_integers, 4, 32, False),
    "int4, groups of 64": partial(to_integers, 4, 64, False),
    "int4, groups of 64, zero points": partial(to_integers, 4, 64, True),
    "int4, per output": partial(to_integers, 4, None, False),
    "int8, groups of 64": partial(to_integers, 8, 64, False),
    "int8, per output": partial(to_integers, 8, None, False),
    "fp8, one scale": partial(to_fp8, (0, 0)),
    "fp8, per output": partial(to_fp8, (1, 0)),
    "fp8, blocks of 128x128": partial(to_fp8, (128, 128)),
}


class Rounded:
    """A checkpoint whose projections are rounded, once; other tensors are float32."""

    def __init__(self, inner: Checkpoint, rounding: Rounding) -> None:
        self._inner = inner
        self.rounded: dict[str, Weights] = {
            name: rounding(inner.tensor(name))
            for name in inner.tensor_names()
            if name.endswith("_proj.weight")
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def matrix(self, name: str) -> Weights:
        return self.rounded[name] if name in self.rounded else self._inner.tensor(name)

    @property
    def bits_per_weight(self) -> float:
        found = [(one, one.shape[0] * one.shape[1]) for one in self.rounded.values()]
        num_bytes = sum(
            one.num_bytes if isinstance(one, PackedWeights) else one.nbytes for one, _ in found
        )
        return 8 * num_bytes / sum(number for _, number in found)


def log_probability(decoder: Decoder, token_ids: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token but the first, float64."""
    config = decoder.config

    def attend(
        layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_thd, k_tkd, v_tkd))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=config.attention_scale, enable_gqa=True
        )
        return out.squeeze(0).transpose(0, 1)

    with torch.inference_mode():
        hidden = decoder.forward(token_ids, torch.arange(len(token_ids)), attend)
        logits = decoder.compute_logits(hidden[:-1]).float().log_softmax(-1)
    return logits.gather(1, token_ids[1:].unsqueeze(1)).squeeze(1).double()


def measure(inner: Checkpoint, rounding: Rounding, token_ids: torch.Tensor) -> dict[str, Any]:
    """Bits per weight and perplexities of one format; no packed one where kernels lack it."""
    cpu, checkpoint = torch.device("cpu"), Rounded(inner, rounding)
    load: Any = partial(load_decoder, checkpoint, device=cpu, progress=no_progress)
    exact = log_probability(load(dtype=torch.float32), token_ids)
    found = {
        "bits_per_weight": round(checkpoint.bits_per_weight, 2),
        "perplexity": round(float((-exact.mean()).exp()), 4),
    }
    spec = LinearSpec(dtype=torch.bfloat16, device=cpu)
    matrix = checkpoint.matrix("model.layers.0.mlp.down_proj.weight")
    is_kept = isinstance(matrix, torch.Tensor) or CPULinear.keeps(spec, matrix.format)
    if is_kept and not CPULinear.reasons_against(spec):
        packed = log_probability(load(dtype=torch.bfloat16, linear=CPULinear(spec)), token_ids)
        found["packed_perplexity"] = round(float((-packed.mean()).exp()), 4)
        found["mean_difference"] = round(float((packed - exact).abs().mean()), 5)
    return found


def show(found: Mapping[str, Mapping[str, float]], console: Console) -> None:
    table = Table(title="Perplexity of a text by the format of the projections")
    for column in ("format", "bits", "float32", "kernels, bfloat16", "ratio", "|difference|"):
        table.add_column(column, justify="left" if column == "format" else "right")
    base = found["float32"]["perplexity"]
    for name, one in found.items():
        cells = [
            f"{one[key]:.{digits}f}" if key in one else "-"
            for key, digits in (
                ("bits_per_weight", 2),
                ("perplexity", 3),
                ("packed_perplexity", 3),
            )
        ]
        difference = f"{one['mean_difference']:.4f}" if "mean_difference" in one else "-"
        table.add_row(name, *cells, f"{one['perplexity'] / base:.4f}", difference)
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, help="directory or .gguf file; None: the default")
    parser.add_argument("--threads", type=int, help="computing threads; None: torch's choice")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the text")
    args: argparse.Namespace = parser.parse_args()
    set_threads(args)
    console = Console()
    path = args.model or verify_default_model(no_progress)
    inner: Any = open_checkpoint(path)
    inner.tensor = cache(inner.tensor)  # dequantized once
    tokenizer = load_tokenizer(path)
    token_ids = torch.tensor(tokenizer.encode(TEXT.read_text("utf-8"))[: args.tokens])
    formats = {"float32": lambda weights: weights, **FORMATS}
    found = {
        name: measure(inner, rounding, token_ids)
        for name, rounding in track(formats.items(), "measuring", console=console, transient=True)
    }
    show(found, console)
    record(args, "formats", {"tokens": len(token_ids), "formats": found})


if __name__ == "__main__":
    main()
