"""Writes docs/models.md from the code: architectures, formats of weights, and how each is computed.

python scripts/docs/write_models.py

tests/docs/test_generated.py compares the file with the code.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType as Kind

from tokenmill.backends.cpu.packed_weights import layout_for
from tokenmill.backends.weights.config.architectures import (
    BY_MODEL_TYPE,
    TABLE,
    Architecture,
    Window,
)
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.formats.grouped_ints import GroupedInts
from tokenmill.backends.weights.formats.quantizing import QUANTIZE_ON_LOAD
from tokenmill.backends.weights.formats.relaying import relaid_format
from tokenmill.backends.weights.formats.scaled_fp8 import ScaledFP8
from tokenmill.backends.weights.packed import WeightFormat
from tokenmill.backends.weights.quantization.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/models.md"
RESULTS = ROOT / "benchmarks/results/formats.json"
MEASURED = ROOT / "benchmarks/results/precisions.json"
DECODERS = ROOT / "benchmarks/results/decoders.json"
GGUF_TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("MXFP4", "TQ1_0", "TQ2_0"),
)
"""Block formats that the gguf package can dequantize."""
EXAMPLES = {
    "LlamaForCausalLM": "Llama 2, 3, 3.1 and 3.2 (text), SmolLM2, TinyLlama",
    "MistralForCausalLM": "Mistral 7B, Mistral Nemo, Mistral Small 3 and 3.1",
    "Qwen2ForCausalLM": "Qwen2, Qwen2.5, QwQ",
    "Qwen2_5_VLTextModel": "Qwen2.5-VL 3B, 7B, 32B, 72B",
    "Qwen3ForCausalLM": "Qwen3 0.6B to 32B",
    "Gemma2ForCausalLM": "Gemma 2",
    "Gemma3ForCausalLM": "Gemma 3: all sizes, from 270M to 27B",
    "Phi3ForCausalLM": "Phi-3-mini, Phi-3.5-mini, Phi-4, Phi-4-mini",
    "SmolLM3ForCausalLM": "SmolLM3",
    "MixtralForCausalLM": "Mixtral 8x7B, 8x22B",
    "Qwen3MoeForCausalLM": "Qwen3 30B-A3B, 235B-A22B",
    "OlmoeForCausalLM": "OLMoE",
    "GptOssForCausalLM": "gpt-oss 20b, 120b",
}
"""Well-known models of each architecture."""
BRIDGED = ("Granite", "OLMo 2", "GLM-4", "Cohere 2", "GPT-NeoX")
"""Models that tests/oracle/test_bridge.py compares with transformers."""

INTRODUCTION = """\
# Models

This page lists the models and the formats of weights that tokenmill runs. To check one model, run
`tokenmill model inspect MODEL`. It reads only the headers of the files. It shows whether the model
runs and fits into memory, and which code computes it.

This page is generated from the code; `make docs` writes it.
"""

BRIDGE = """\
## Other architectures

Many other models run through the modules of transformers, with tokenmill's attention, KV cache and
scheduler. Tested in depth are {tested}. This needs
`pip install 'transformers>=5'` and a Hugging Face directory with safetensors. It is slower than a
native architecture: steps run layer by layer, and quantized weights of every method below are
dequantized. The log reports what that costs. The default, `--model-impl auto`, chooses it if no
native architecture can run the model.

Of tiny models of {judged} decoder classes, {running} run with transformers' tokens in float32, and
no other is accepted (`benchmarks/results/decoders.json` has all results). By `model_type`, these
{types}.

Before the engine is ready, it computes two short prompts, and decodes each of their tokens. It
compares this with the model's own forward pass, layer by layer: the inputs and results of each
attention, and the logits. A layer gets its inputs from the model's own pass, so rounding does not
add up, and does not choose other experts. In 16 bits a right model differs by less than 0.5 %, and
a model with a planted error (rotary frequencies, experts, norms, scales, biases) by 7 % or more;
the limit is 2 %. This takes at most 5 seconds, or 10 % of the time to load. `--skip-model-check`
leaves it out, and the log says so.

A model is refused at start, with the reason, if

- a layer has no attention, or does not use transformers' attention interface (Mamba, convolutions,
  linear attention, ALiBi),
- queries, keys or values differ in size, in a layer or between layers (most latent attention,
  Gemma 4 with two head sizes),
- it attends within chunks (Llama 4), or with a mask of its own,
- tokens affect each other outside of attention, or it computes positions in a way of its own,
- its rotary frequencies depend on the longest sequence of a batch (`dynamic`, `longrope`),
- it is a GGUF file, or it needs code from its own directory (`auto_map`).

A plugin can add an architecture: see [models and weight
formats](plugins/models-and-weights.md).
"""

LLAMA = "llama"
"""The architecture that GGUF files state for models without a name of their own."""

NATIVE = """\
These models, and others with the same `model_type`, run on CPUs and GPUs. They are read from
Hugging Face directories with safetensors and from GGUF files, which may be split. SmolVLM,
Idefics3, Gemma 3, Mistral 3 and Qwen2.5-VL also read [images](serving/images.md). Of other
multimodal models, the text model is used and the image encoder is ignored: in directories of the
classes under "remarks", and in directories with GGUF files (`mmproj*.gguf`).

Models with longrope (Phi-3 and Phi-4-mini with 128k tokens) have two sets of rotary frequencies. By
default the context is the original one, and tokens are those of transformers. With a larger
`--max-model-len` all sequences get the frequencies for long ones, as in vLLM. That changes the
answers to short prompts, and the log says so.
"""

FORMATS = """\
## Formats of weights

*Packed* weights keep the size of the file in memory, or a similar one. *Dequantized* weights become
numbers of 16 or 32 bits while they are loaded: a model in 4 bits then needs about 4 or 8 times as
much memory. The log reports the cost. Decoding reads all weights in every step, so packed
weights also decode faster: see [performance](performance.md#throughput) for measurements.

On CPUs with native kernels, an embedding stays packed, too: the rows of tokens are dequantized
when they are looked up. Tied embeddings are in memory once, as the head. With `--quantize-on-load`
the head is quantized and the embedding is not, so they are two matrices.

A GGUF file mixes formats. For example, Q4_K_M files have matrices in Q4_K and Q6_K, and also in
Q5_0 and Q8_0 if the model's rows are not multiples of 256. `tokenmill model inspect` lists the
formats of a file.

Weights are dequantized on GPUs, on CPUs without native kernels, and with any `--dtype` except
`auto`.
"""

PRECISIONS = """\
## Precision of models in floating point

On a CPU with native kernels, a float16 file keeps its matrices in float16. Products convert them in
registers, and everything else is computed in float32, the KV cache included. Files in float32 and
bfloat16 are computed in bfloat16 where the CPU can: float32 weights are rounded, and the log and
`tokenmill model inspect` state the price. `--dtype float16` rounds such weights to float16 instead,
in about the same memory. `--dtype float32` keeps all numbers, in twice the memory.

`benchmarks/precisions.py` measures what each choice costs the default model, written in float32 and
in float16 (`benchmarks/results/precisions.json`, {instruction_set}): the mean and the largest
difference of the log-probabilities of {tokens} tokens of a novel from those of transformers in
float32. It also measures speed. Decoding reads the same number of bytes in float16 and in
bfloat16. Prompts take longer on CPUs with instructions for bfloat16, which float16 cannot use.

{table}"""

COSTS = """\
## Quality of each format

`benchmarks/formats.py` rounds the projections of the default model to each format and measures the
effect (`benchmarks/results/formats.json`).

- *perplexity*: of {tokens} tokens of a novel, computed in float32. Lower is better.
- *CPU kernels*: the same, computed in bfloat16 by the native kernels ({instruction_set}) with their
  default settings: weights stay packed, and inputs are rounded to int8.
- *differences*: mean absolute difference of the log-probabilities per token from those in float32.
  The first number is for dequantized weights in bfloat16, the second for packed weights with inputs
  in bfloat16, the third for packed weights with inputs in int8.

In float32, the log-probabilities in every format equal those of transformers with the same rounded
numbers (largest difference: {largest}).

Three facts limit the comparison of formats:

- The default model is published in Q4_1. So Q4_1 loses nothing here, and the other formats round a
  second time. They can lose more than with the original weights.
- Q2_K to Q6_K and IQ4_XS have blocks of 256 inputs. In this model only `down_proj` has such rows
  (1,536 inputs). The other matrices have rows of 576 inputs, and get the format after "or", as with
  llama-quantize.
- Integers and FP8 are rounded to the nearest number. Calibrated checkpoints are better.

{table}"""


def page() -> str:
    """The page, as the code is now."""
    parts = [INTRODUCTION, _architectures(), _bridge(), FORMATS, _formats()]
    parts.append(_precisions(json.loads(MEASURED.read_text(encoding="utf-8"))))
    parts.append(_costs(json.loads(RESULTS.read_text(encoding="utf-8"))))
    return "\n".join(parts)


def _bridge() -> str:
    models = json.loads(DECODERS.read_text(encoding="utf-8"))["models"]
    running = [name for name, one in models.items() if one["float32"]["verdict"] == "runs"]
    return BRIDGE.format(
        tested=", ".join(BRIDGED),
        judged=sum(one["float32"]["verdict"] != "not built" for one in models.values()),
        running=len(running),
        types=textwrap.fill("run: " + ", ".join(f"`{name}`" for name in running), 100),
    )


def _architectures() -> str:
    rows = [
        (
            EXAMPLES[row.name],
            f"`{row.model_type}`",
            "none" if row.rope_sections else f"`{row.gguf or LLAMA}`",
            _remarks(row),
        )
        for row in TABLE
    ]
    head = ("examples", "`model_type` in config.json", "architecture in GGUF", "remarks")
    return f"## Native architectures\n\n{NATIVE}\n{_table(head, rows)}"


def _remarks(row: Architecture) -> str:
    windows = {
        Window.ALL: "optional sliding window in all layers",
        Window.SWITCHED: "optional sliding window in the last layers",
        Window.WITHOUT_ROPE: "optional sliding window in some layers",
        Window.PATTERN: f"sliding window, except in every {_nth(row.window_pattern)} layer",
    }
    found = [windows[row.window]] if row.window in windows else []
    if row.experts is not None:
        found.insert(0, "mixture of experts")
    found += [f"text model of `{name}`" for name in row.multimodal]
    return ", ".join(found)


def _nth(number: int) -> str:
    return {2: "second"}.get(number, f"{number}th")


def _formats() -> str:
    rows = [(name, where, *_computed(formats)) for name, where, formats in _listed()]
    head = ("format", "files", "CPU with AVX2, dotprod (ARM) or better", "GPU")
    small = ", ".join(f"`{name}`" for name in QUANTIZE_ON_LOAD)
    flags = (
        f"`--quantize-on-load` ({small}) quantizes a floating-point model while it is loaded, on\n"
        f"CPUs. `--quantization` ({', '.join(METHODS)}, gguf)\n"
        "only states what you expect: the start fails if the files have another kind of weights.\n"
    )
    return f"{_table(head, rows)}\n{flags}"


def _listed() -> Iterable[tuple[str, str, Sequence[WeightFormat]]]:
    """Name, files and in-memory formats of every kind of weights."""
    for kept in (True, False):
        kinds = [GGUFBlocks(Kind[name]) for name in GGUF_TYPES]
        alike = [kind for kind in kinds if _is_kept(kind) is kept]
        yield ", ".join(kind.name for kind in alike), "GGUF", alike
    yield "float32, float16, bfloat16", "both", []
    int4 = GroupedInts(bits=4, group_size=128, has_zeros=True)
    int8 = replace(int4, bits=8)
    yield "AWQ (gemm)", "safetensors", [int4]
    yield "GPTQ, 2 to 4 bits", "safetensors", [int4]
    yield "GPTQ with act-order", "safetensors", [replace(int4, order="any")]
    yield "GPTQ, 8 bits, symmetric", "safetensors", [replace(int8, has_zeros=False)]
    yield "GPTQ, 8 bits with zero points", "safetensors", [int8]
    yield "compressed-tensors, 2 to 4 bits", "safetensors", [int4]
    yield "compressed-tensors, 8 bits, symmetric", "safetensors", [replace(int8, has_zeros=False)]
    yield "compressed-tensors, 8 bits with zero points", "safetensors", [int8]
    yield "FP8", "safetensors", [ScaledFP8(group_size=128)]
    if "gpt_oss" in BY_MODEL_TYPE:
        yield "MXFP4 (gpt-oss)", "safetensors", [GGUFBlocks(Kind.MXFP4)]


def _computed(formats: Sequence[WeightFormat]) -> tuple[str, str]:
    if not formats:
        return "as below", "as bfloat16, float16 or float32"
    return "packed" if all(map(_is_kept, formats)) else "dequantized", "dequantized"


def _is_kept(format: WeightFormat) -> bool:
    return layout_for(relaid_format(format)) is not None


def _precisions(results: Mapping[str, Any]) -> str:
    head = ("file", "`--dtype`", "mean difference", "largest difference")
    figures = ("mean_difference", "largest_difference")
    rows = [
        (stored, f"`{name}`", *(f"{one[figure]:g}" for figure in figures))
        for stored, choices in results["files"].items()
        for name, one in choices.items()
    ]
    return PRECISIONS.format(
        instruction_set=results["instruction_set"],
        tokens=results["options"]["tokens"],
        table=_table(head, rows),
    )


def _costs(results: Mapping[str, Any]) -> str:
    head = ("format", "bits per weight", "perplexity", "CPU kernels", "differences")
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
