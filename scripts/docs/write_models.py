"""Writes docs/models.md from the code: architectures, formats of weights, and who computes them.

python scripts/docs/write_models.py

tests/docs/test_generated.py compares the file with the code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Kind

from tokenmill.backends.cpu.packed_weights import layout_for
from tokenmill.backends.weights.architectures import BY_MODEL_TYPE, TABLE, Architecture, Window
from tokenmill.backends.weights.expected_quantization import QUANTIZATIONS
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.formats.grouped_ints import GroupedInts
from tokenmill.backends.weights.formats.quantizing import QUANTIZE_ON_LOAD
from tokenmill.backends.weights.formats.relaying import relaid_format
from tokenmill.backends.weights.formats.scaled_fp8 import ScaledFP8
from tokenmill.backends.weights.packed import WeightFormat

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/models.md"
RESULTS = ROOT / "benchmarks/results/formats.json"
GGUF_TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
)
BRIDGED = ("Granite", "OLMo 2", "GLM-4", "Cohere 2", "GPT-NeoX")
"""Models that tests/oracle/test_bridge.py compares with transformers."""

INTRODUCTION = """\
# Models

This page is generated from the code: `make docs` writes it. It says which models tokenmill runs,
and how the weights of each format are computed. `tokenmill model inspect PATH` says the same of
one model, without loading it.
"""

BRIDGE = """\
## Other architectures

`--model-impl transformers`, which `auto` also takes if no native implementation can run a model,
runs any decoder that transformers knows and whose layers attend through transformers' attention
interface. Tested are {tested}. It needs `pip install 'transformers>=5'`, reads
directories with safetensors, and is slower than a native architecture. A model is refused, with
the reason, if

- some layers have no attention, or attend in another way (Mamba, convolutions, MLA, ALiBi),
- tokens see each other outside of attention,
- its rotary frequencies depend on the longest sequence of a batch (`dynamic`, `longrope`),
- its weights are quantized, or it needs code from the model's directory (`auto_map`).

A plugin can add an architecture: see [write a
plugin](write-a-plugin.md#write-a-model-implementation).
"""

FORMATS = """\
## Formats of weights

*Kept* weights stay packed in memory, and products read them as they are. *Dequantized* weights
become bfloat16 or float32 while they are loaded; the log says what that costs in memory.
`--dtype` with any value but `auto` dequantizes all. GPUs and CPUs without native kernels keep
none.
"""

COSTS = """\
## What a format costs

Measured with the default model, whose projections `benchmarks/formats.py` rounds to each format
(`benchmarks/results/formats.json`).

- *Perplexity* is that of {tokens} tokens of a novel, in float32.
- *Kernels* is the same by the CPU's kernels in bfloat16 ({instruction_set}), which keep the weights
  packed and round inputs to int8, as they do by default.
- *Differences* are means of |log-probability - that in float32| per token: with dequantized
  weights in bfloat16, with packed ones and inputs in bfloat16, and with packed ones and int8.

In float32, log-probabilities per token are those of transformers with the same rounded numbers, in
every format (largest difference: {largest}). The default model is published in Q4_1: it loses
nothing here, and the others round a second time, so they can lose more than with original weights.
Rows of blocks of 256 inputs exist in this model only in `down_proj` (1,536 inputs);
its other matrices have rows of 576, and the format that llama-quantize gives them, which stands
behind "or". Integers and FP8 are the nearest ones; calibrated checkpoints are better.

{table}"""


def page() -> str:
    """The page, as the code is now."""
    tested = ", ".join(BRIDGED)
    parts = [INTRODUCTION, _architectures(), BRIDGE.format(tested=tested), FORMATS, _formats()]
    parts.append(_costs(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def _architectures() -> str:
    rows = [
        (
            row.name.removesuffix("ForCausalLM"),
            f"`{row.model_type}`",
            "" if row.gguf is None else f"`{row.gguf}`",
            _remarks(row),
        )
        for row in TABLE
    ]
    head = ("architecture", "config.json: `model_type`", "GGUF: `general.architecture`", "")
    text = _table(head, rows)
    return f"## Native architectures\n\nOn CPUs and GPUs, from both kinds of files.\n\n{text}"


def _remarks(row: Architecture) -> str:
    windows = {
        Window.ALL: "a sliding window in all layers",
        Window.SWITCHED: "a sliding window in the last layers",
        Window.WITHOUT_ROPE: "a sliding window in some layers",
        Window.PATTERN: f"a sliding window in all but one of {row.window_pattern} layers",
    }
    found = [windows[row.window]] if row.window in windows else []
    if row.experts is not None:
        found.append("experts")
    return ", ".join(found)


def _formats() -> str:
    rows = [(name, where, *_computed(formats)) for name, where, formats in _listed()]
    head = ("format", "files", "CPU with AVX2, dotprod (ARM) or better", "GPU")
    small = ", ".join(f"`{name}`" for name in QUANTIZE_ON_LOAD)
    flags = (
        f"`--quantization` names the expected kind of files ({', '.join(QUANTIZATIONS)}); the "
        "start fails if the model has another. `--quantize-on-load` makes a model in floating "
        f"point small on a CPU: {small}.\n"
    )
    return f"{_table(head, rows)}\n{flags}"


def _listed() -> Iterable[tuple[str, str, Sequence[WeightFormat]]]:
    """Name, files and in-memory formats of every kind of weights."""
    kinds = [
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "IQ4_NL",
        "IQ4_XS",
        "MXFP4",
    ]
    for kind in kinds:
        yield kind, "GGUF", [GGUFBlocks(Kind[kind])]
    yield "float32, float16, bfloat16", "both", []
    int4 = GroupedInts(bits=4, group_size=128, has_zeros=True)
    yield "AWQ (gemm)", "safetensors", [int4]
    yield "GPTQ, 4 bits", "safetensors", [int4]
    yield "GPTQ, 8 bits", "safetensors", [GroupedInts(bits=8, group_size=128, has_zeros=True)]
    yield "compressed-tensors, int4", "safetensors", [GroupedInts(bits=4, group_size=128)]
    yield "compressed-tensors, int8", "safetensors", [GroupedInts(bits=8, group_size=None)]
    yield "FP8", "safetensors", [ScaledFP8(group_size=128)]
    if "gpt_oss" in BY_MODEL_TYPE:
        yield "MXFP4 experts", "safetensors", [GGUFBlocks(Kind.MXFP4)]


def _computed(formats: Sequence[WeightFormat]) -> tuple[str, str]:
    if not formats:
        return "as bfloat16 or float32", "as they are"
    kept = all(layout_for(relaid_format(one)) is not None for one in formats)
    return "kept" if kept else "dequantized", "dequantized"


def _costs(results: Mapping[str, Any]) -> str:
    head = ("format", "bits per weight", "perplexity", "kernels", "differences")
    found = results["formats"]
    rows = [
        (
            name,
            f"{one['bits_per_weight']:g}",
            f"{one['perplexity']:.2f}",
            f"{one['perplexity_int8_inputs']:.2f}" if "perplexity_int8_inputs" in one else "",
            _differences(one),
        )
        for name, one in found.items()
    ]
    return COSTS.format(
        tokens=results["tokens"],
        instruction_set=results["instruction_set"],
        largest=f"{max(one['largest_difference_of_float32'] for one in found.values()):g}",
        table=_table(head, rows),
    )


def _differences(one: Mapping[str, float]) -> str:
    kinds = ("dequantized", "float_inputs", "int8_inputs")
    names = [f"mean_difference_{kind}" for kind in kinds]
    return " / ".join(f"{one[name]:.3f}" for name in names if name in one)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
