"""Writes foreign.safetensors: small matrices that other packages quantized, and their numbers.

It runs outside of the project's environment, because auto-round pins many packages:

    python -m venv /tmp/makers && /tmp/makers/bin/pip install torch==2.13.0
    /tmp/makers/bin/pip install auto-round==0.16.1 compressed-tensors==0.20.0
    HF_HUB_OFFLINE=1 /tmp/makers/bin/python tests/backends/weights/quantization/make_foreign.py

For each case the file has the tensors "CASE/part", and in its metadata "CASE": the
`quantization_config` in JSON. The numbers of the matrix [out, in] are the tensor "CASE/expected"
in bfloat16 from auto-round; from compressed-tensors they are "CASE/sha256" in the metadata, the
SHA-256 of float32.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FILE = Path(__file__).with_name("foreign.safetensors")
MATRIX = "model.layers.0.self_attn.k_proj"
OUT, IN = 32, 64
AUTO_ROUND = {
    "gptq-int4": ("W4A16", "auto_gptq", {}),
    "gptq-int4-zeros": ("W4A16", "auto_gptq", {"sym": False}),
    "gptq-int8": ("W8A16", "auto_gptq", {}),
    "gptq-int3": ("W3A16", "auto_gptq", {}),
    "gptq-int2": ("W2A16", "auto_gptq", {}),
    "awq": ("W4A16", "auto_awq", {}),
    "awq-zeros": ("W4A16", "auto_awq", {"sym": False}),
}
"""auto-round's scheme, the format that it writes, and more settings."""
INTEGER = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FLOAT = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "ct-int4": ("pack-quantized", INTEGER),
    "ct-int4-zeros": ("pack-quantized", INTEGER | {"symmetric": False}),
    "ct-int3": ("pack-quantized", INTEGER | {"num_bits": 3}),
    "ct-int4-channel": (
        "pack-quantized",
        INTEGER | {"strategy": "channel", "group_size": None, "symmetric": False},
    ),
    "ct-int8-packed": ("pack-quantized", INTEGER | {"num_bits": 8}),
    "ct-int8": (
        "int-quantized",
        INTEGER | {"num_bits": 8, "strategy": "channel", "group_size": None},
    ),
    "ct-fp8": ("float-quantized", FLOAT),
    "ct-fp8-tensor": ("float-quantized", FLOAT | {"strategy": "tensor"}),
    "ct-fp8-block": ("float-quantized", FLOAT | {"strategy": "block", "block_structure": [8, 16]}),
}
"""compressed-tensors' format, and the settings of the weights."""


def main() -> None:
    tensors: dict[str, torch.Tensor] = {}
    configs: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = make_model(Path(folder) / "tiny")
        for case in AUTO_ROUND:
            parts, config = run_auto_round(case, model, tokenizer, Path(folder) / case)
            configs[case] = json.dumps(config)
            tensors |= {f"{case}/{name}": tensor for name, tensor in parts.items()}
        weight = model.state_dict()[f"{MATRIX}.weight"].float()
    for case in COMPRESSED:
        parts, config = run_compressed_tensors(case, weight)
        expected = parts.pop("expected").contiguous().numpy()
        configs[case] = json.dumps(config)
        configs[f"{case}/sha256"] = hashlib.sha256(expected.tobytes()).hexdigest()
        tensors |= {f"{case}/{name}": tensor.contiguous() for name, tensor in parts.items()}
    save_file(tensors, FILE, metadata=configs)


def make_model(path: Path) -> tuple[Any, Any]:
    """A model of one layer with random weights in bfloat16; auto-round wants a tokenizer too."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=IN,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=OUT,
        vocab_size=128,
        max_position_embeddings=64,
    )
    vocabulary = {chr(33 + index): index for index in range(90)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, [])))
    return LlamaForCausalLM(config).to(torch.bfloat16), tokenizer


def run_auto_round(
    case: str, model: Any, tokenizer: Any, path: Path
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Quantize twice: for the packed tensors, and for the dequantized ones in bfloat16."""
    from copy import deepcopy

    from auto_round import AutoRound

    scheme, format, settings = AUTO_ROUND[case]
    for kind in (format, "fake"):
        rounding = AutoRound(
            deepcopy(model),
            tokenizer,
            scheme=scheme,
            iters=0,
            disable_opt_rtn=True,
            group_size=32,
            **settings,
        )
        rounding.quantize_and_save(str(path / kind), format=kind)
    packed, (folder,) = load_all(path / format)
    parts = {
        name.removeprefix(f"{MATRIX}."): tensor
        for name, tensor in packed.items()
        if name.startswith(MATRIX)
    }
    parts["expected"] = load_all(path / "fake")[0][f"{MATRIX}.weight"]
    config = json.loads((folder / "config.json").read_text())
    return parts, config["quantization_config"]


def load_all(path: Path) -> tuple[dict[str, torch.Tensor], set[Path]]:
    files = list(path.rglob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return tensors, {file.parent for file in files}


def run_compressed_tensors(
    case: str, weight: torch.Tensor
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Quantize to the nearest number, with scales in float32, so that expected is exact."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    format, settings = COMPRESSED[case]
    args = QuantizationArgs(**settings)
    blocks = {
        "group": weight.unflatten(1, (-1, 32)),
        "channel": weight.unsqueeze(1),
        "tensor": weight.reshape(1, 1, -1),
        "block": weight.reshape(OUT // 8, 8, IN // 16, 16).transpose(1, 2).flatten(2),
    }[settings["strategy"]]
    scale, zero = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    if settings["strategy"] == "tensor":
        scale, zero = scale.flatten(), zero.flatten()
    compressor = BaseCompressor.get_value_from_registry(format)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
    parts = compressor.compress(state, scheme)
    expected = compressor.decompress(dict(parts), scheme)["weight"]
    config = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": json.loads(scheme.model_dump_json())},
        "ignore": ["lm_head"],
    }
    return parts | {"expected": expected}, config


if __name__ == "__main__":
    main()
