"""Writes docs/models.md from the code: architectures, formats of weights, and who computes them.

python scripts/docs/write_models.py

tests/docs/test_generated.py compares the file with the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

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

PAGE = Path(__file__).parents[2] / "docs/models.md"
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


def page() -> str:
    """The page, as the code is now."""
    tested = ", ".join(BRIDGED)
    parts = [INTRODUCTION, _architectures(), BRIDGE.format(tested=tested), FORMATS, _formats()]
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
    head = ("format", "files", "CPU with AVX2 or better", "GPU")
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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
