"""Measures the effect of weight formats: bits per weight, log-probabilities and perplexity.

python benchmarks/formats.py --help

The projections of all layers are rounded to each format. For each token of a text, the benchmark
compares

- the engine's decoder in float32 with transformers' model, which has the same rounded numbers,
- the CPU kernels in bfloat16 with the engine's decoder in float32. The kernels have dequantized
  weights and, if they keep the format, packed ones. The inputs of packed weights stay bfloat16, or
  are rounded to int8 (the default).

AWQ, GPTQ and compressed-tensors differ in how they choose integers and scales. Here every number is
rounded to the nearest integer, so calibrated checkpoints have lower perplexities. Formats with
blocks of 256 need rows of a multiple of 256 inputs; other rows get the format that llama-quantize
gives them. Formats that only ggml's own code can make need `pip install libgguf`; without it they
are left out.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Kind
from recording import make_parser, record, set_threads
from rich.console import Console
from rich.progress import track
from rich.table import Table
from throughput import load_transformers

from tokenmill.assembly import verify_default_model
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.cpu.projections import CPULinear, ExactCPULinear
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.formats.bits import pack_nibbles
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.formats.grouped_ints import grouped_ints
from tokenmill.backends.weights.formats.quantizing import kind_on_load, quantize
from tokenmill.backends.weights.formats.scaled_fp8 import scaled_fp8
from tokenmill.backends.weights.packed import PackedWeights, Weights
from tokenmill.core.interfaces import no_progress

try:
    import libgguf
except ImportError:
    libgguf = None

TEXT = Path(__file__).parents[1] / "tests" / "oracle" / "texts" / "pride_and_prejudice.txt"
KERNELS = LinearSpec(dtype=torch.bfloat16, device=torch.device("cpu"))
Rounding = Callable[[torch.Tensor], Weights]
"""Rounds a matrix in float32."""


def loaded(weights: torch.Tensor, name: str) -> Weights:
    """A matrix as --quantize-on-load leaves it."""
    kind = kind_on_load(name, weights.shape[1])
    return weights if kind is None else quantize(weights, kind)


@cache
def to_gguf(kind: Kind, weights: torch.Tensor) -> Weights:
    blocks = torch.from_numpy(quantize_rows(weights.numpy(), kind))
    return PackedWeights(GGUFBlocks(kind), (weights.shape[0], weights.shape[1]), (blocks,))


def quantize_rows(rows: np.ndarray, kind: Kind) -> np.ndarray:
    """Quantize by the gguf package, or by ggml's own code for kinds that the package only reads."""
    if kind.name not in OF_GGML:
        return gguf.quants.quantize(rows, kind)
    blocks = np.asarray(libgguf.quantize_rows(rows, int(libgguf.GGMLQuantizationType[kind.name])))
    return blocks.view(np.uint8).reshape(len(rows), -1)


def to_superblocks(kind: Kind, other: Kind, weights: torch.Tensor) -> Weights:
    """Quantize to `kind`, or to `other` if the rows are not whole blocks of `kind`."""
    fits = weights.shape[1] % GGUFBlocks(kind).block_size == 0
    return to_gguf(kind if fits else other, weights)


def to_integers(
    bits: int, group_size: int | None, has_zeros: bool, weights: torch.Tensor
) -> Weights:
    """Round to the nearest integers, with scales in float16."""
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
    """Scale each block so that its largest number is 448. A size of 0 is the matrix's size."""
    rows, columns = block[0] or weights.shape[0], block[1] or weights.shape[1]
    padded = F.pad(weights, (0, -weights.shape[1] % columns, 0, -weights.shape[0] % rows))
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scales = blocks.abs().amax((1, 3)) / 448
    spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    stored = weights / spread[: weights.shape[0], : weights.shape[1]]
    return scaled_fp8(stored.to(torch.float8_e4m3fn), scales, (rows, columns))


SUPERBLOCKS = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""Formats with blocks of 256, and the formats that llama-quantize gives to other rows."""
OF_GGML = {*SUPERBLOCKS, "IQ4_NL"} if libgguf else set()

FORMATS: Mapping[str, Rounding] = {
    "float32": lambda weights: weights,
    "bfloat16": lambda weights: weights.to(torch.bfloat16),
    **{
        name: partial(to_gguf, Kind[name])
        for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", *OF_GGML - set(SUPERBLOCKS))
    },
    **{
        f"{name}, or {other}": partial(to_superblocks, Kind[name], Kind[other])
        for name, other in SUPERBLOCKS.items()
        if name in OF_GGML
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


def by_decoder(decoder: Decoder, token_ids: torch.Tensor) -> torch.Tensor:
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
        return of_next(decoder.compute_logits(hidden), token_ids)


def by_transformers(model: Any, checkpoint: Rounded, token_ids: torch.Tensor) -> torch.Tensor:
    """The same, computed by transformers with the rounded numbers."""
    weights = dict(model.named_parameters())
    with torch.inference_mode():
        for name, matrix in checkpoint.rounded.items():
            weights[name].copy_(dense(matrix))
        return of_next(model(token_ids.unsqueeze(0)).logits[0], token_ids)


def dense(matrix: Weights) -> torch.Tensor:
    return matrix.dequantize() if isinstance(matrix, PackedWeights) else matrix


def of_next(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    found = logits[:-1].float().log_softmax(-1)
    return found.gather(1, token_ids[1:].unsqueeze(1)).squeeze(1).double()


def measure(
    inner: Checkpoint, model: Any, rounding: Rounding, token_ids: torch.Tensor
) -> dict[str, float]:
    """The figures of one format; those of packed weights only if the kernels keep it."""
    checkpoint = Rounded(inner, rounding)
    load: Any = partial(load_decoder, checkpoint, device=KERNELS.device, progress=no_progress)
    exact = by_decoder(load(dtype=torch.float32), token_ids)
    found = {
        "bits_per_weight": round(checkpoint.bits_per_weight, 2),
        "perplexity": perplexity(exact),
        "largest_difference_of_float32": largest(
            exact - by_transformers(model, checkpoint, token_ids)
        ),
    }
    if CPULinear.reasons_against(KERNELS):
        return found
    load = partial(load, dtype=torch.bfloat16)
    dequantized = by_decoder(load(linear=CPULinear(KERNELS), keeps_packed=False), token_ids)
    found |= compare("dequantized", dequantized, exact)
    packed = [one.format for one in checkpoint.rounded.values() if isinstance(one, PackedWeights)]
    if any(CPULinear.keeps(KERNELS, format) for format in set(packed)):
        for name, backend in (("float_inputs", ExactCPULinear), ("int8_inputs", CPULinear)):
            found |= compare(name, by_decoder(load(linear=backend(KERNELS)), token_ids), exact)
    return found


def compare(name: str, found: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    return {
        f"perplexity_{name}": perplexity(found),
        f"mean_difference_{name}": round(float((found - exact).abs().mean()), 5),
    }


def perplexity(log_probabilities: torch.Tensor) -> float:
    return round(float((-log_probabilities.mean()).exp()), 4)


def largest(differences: torch.Tensor) -> float:
    return float(f"{float(differences.abs().max()):.2g}")


COLUMNS: Sequence[tuple[str, str, int]] = (
    ("bits", "bits_per_weight", 2),
    ("float32", "perplexity", 3),
    ("|transformers|", "largest_difference_of_float32", 7),
    ("int8 inputs", "perplexity_int8_inputs", 3),
    ("|dequantized|", "mean_difference_dequantized", 4),
    ("|float inputs|", "mean_difference_float_inputs", 4),
    ("|int8 inputs|", "mean_difference_int8_inputs", 4),
)
"""Title, name and digits."""


def show(found: Mapping[str, Mapping[str, float]], console: Console) -> None:
    table = Table(title="Perplexity of a text by the format of the projections, and differences")
    table.add_column("format")
    for title, _, _ in COLUMNS:
        table.add_column(title, justify="right")
    for name, one in found.items():
        cells = [f"{one[key]:.{digits}f}" if key in one else "" for _, key, digits in COLUMNS]
        table.add_row(name, *cells)
    console.print(table)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, help="directory or .gguf file; None: the default")
    parser.add_argument("--threads", type=int, help="computing threads; None: torch's choice")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the text")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), help="names in the table")
    args: argparse.Namespace = parser.parse_args()
    if unknown := set(args.formats) - set(FORMATS):
        parser.error(f"{', '.join(unknown)}: unknown; the formats are {'; '.join(FORMATS)}")
    set_threads(args)
    logging.getLogger("tokenmill").setLevel(logging.ERROR)  # what is dequantized is in the table
    console = Console()
    path = args.model or verify_default_model(no_progress)
    inner: Any = open_checkpoint(path)
    inner.tensor = cache(lambda name: type(inner).tensor(inner, name).float())  # dequantized once
    model = load_transformers(path, "float32")
    token_ids = torch.tensor(load_tokenizer(path).encode(TEXT.read_text("utf-8"))[: args.tokens])
    found: dict[str, dict[str, float]] = {}
    try:
        for name in track(args.formats, "measuring", console=console, transient=True):
            found[name] = measure(inner, model, FORMATS[name], token_ids)
    finally:  # Ctrl-C keeps the formats that were measured
        show(found, console)
        kernels = "torch" if CPULinear.reasons_against(KERNELS) else load_library().instruction_set
        figures = {"tokens": len(token_ids), "instruction_set": kernels, "formats": found}
        record(args, "formats", figures)


if __name__ == "__main__":
    main()
