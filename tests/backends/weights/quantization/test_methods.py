"""Quantized safetensors: every method's layout, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmill.backends.weights.packed import PackedWeights
from tokenmill.core.errors import ConfigError

from .checkpoints import MATRIX, MODULE, write_tensors
from .writers import CASES, integers

AWQ = CASES["awq"]
GPTQ = CASES["gptq"]
PACKED = CASES["compressed-tensors, int4"]


def random_matrix(num_outputs: int = 40, num_inputs: int = 96) -> torch.Tensor:
    return torch.randn(num_outputs, num_inputs, generator=torch.Generator().manual_seed(3))


def parts_of(parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {MODULE + ending: tensor for ending, tensor in parts.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_matrix_is_packed_under_transformers_name_with_the_writer_s_numbers(
    case: str, tmp_path: Path
) -> None:
    parts, values = CASES[case].write(random_matrix(num_outputs=64))
    checkpoint = write_tensors(
        tmp_path, parts_of(parts) | {"norm": torch.ones(2)}, CASES[case].config
    )
    assert sorted(checkpoint.tensor_names()) == [MATRIX, "norm"]
    matrix = checkpoint.matrix(MATRIX)
    assert isinstance(matrix, PackedWeights)
    assert torch.equal(matrix.dequantize(), values)
    assert torch.equal(checkpoint.tensor(MATRIX), values)
    assert checkpoint.dtype == matrix.format
    assert torch.equal(checkpoint.tensor("norm"), torch.ones(2))


NUM_BYTES = {
    # 64 x 96 numbers; scales of 2 or 4 bytes, and zero points of 1, per 32 numbers
    "awq": 3072 + 192 * 3,
    "awq, symmetric": 3072 + 192 * 2,
    "gptq, 8 bits": 6144 + 192 * 3,
    "gptq, act-order": 3072 + 192 * 2 + 96 * 4,
    "fp8, blocks": 6144 + 192 * 4,
    "compressed-tensors, int4": 3072 + 192 * 4,
}


@pytest.mark.parametrize("case", NUM_BYTES)
def test_a_packed_matrix_is_as_small_as_in_the_file(case: str, tmp_path: Path) -> None:
    parts, _ = CASES[case].write(random_matrix(num_outputs=64))
    matrix = write_tensors(tmp_path, parts_of(parts), CASES[case].config).matrix(MATRIX)
    assert isinstance(matrix, PackedWeights)
    assert matrix.num_bytes == NUM_BYTES[case]


def test_inputs_need_not_fill_the_last_group_or_block(tmp_path: Path) -> None:
    for case in ("gptq", "gptq, zero points", "fp8, blocks", "compressed-tensors, int4"):
        parts, values = CASES[case].write(random_matrix(40, 104))
        checkpoint = write_tensors(tmp_path, parts_of(parts), CASES[case].config)
        assert torch.equal(checkpoint.tensor(MATRIX), values), case


def test_modules_that_the_files_do_not_quantize_stay_as_they_are(tmp_path: Path) -> None:
    parts, _ = AWQ.write(random_matrix())
    plain = random_matrix().to(torch.bfloat16)
    config = AWQ.config | {"modules_to_not_convert": ["o_proj"]}
    checkpoint = write_tensors(tmp_path, parts_of(parts) | {"o_proj.weight": plain}, config)
    kept = checkpoint.matrix("o_proj.weight")
    assert isinstance(kept, torch.Tensor)
    assert torch.equal(kept, plain)


def test_scales_of_activations_and_of_the_kv_cache_are_ignored(tmp_path: Path) -> None:
    case = CASES["compressed-tensors, fp8, one scale"]
    parts, _ = case.write(random_matrix())
    assert ".input_scale" in parts
    names = ("k_scale", "v_zero_point", "q_proj.input_zero_point", "k_proj.output_scale")
    extra = {f"model.layers.0.self_attn.{name}": torch.ones(1) for name in names}
    checkpoint = write_tensors(tmp_path, parts_of(parts) | extra, case.config)
    assert checkpoint.tensor_names() == (MATRIX,)


def test_groups_with_different_schemes_are_told_apart(tmp_path: Path) -> None:
    kinds = ("int4", "int3", "fp8, blocks", "fp8", "int8", "int8, zero points")
    cases = [CASES[f"compressed-tensors, {kind}"] for kind in kinds]
    groups, tensors, expected = {}, {}, {}
    for number, case in enumerate(cases):
        settings = case.config["config_groups"]["group_0"] | {"format": case.config["format"]}
        groups[f"group_{number}"] = settings
        parts, expected[f"{number}.weight"] = case.write(random_matrix())
        tensors |= {f"{number}{ending}": tensor for ending, tensor in parts.items()}
    config = cases[0].config | {"format": "mixed-precision", "config_groups": groups}
    checkpoint = write_tensors(tmp_path, tensors, config)
    for name, values in expected.items():
        assert torch.equal(checkpoint.tensor(name), values), name


def test_matrices_of_equal_parts_but_other_shapes_are_told_apart(tmp_path: Path) -> None:
    """64 inputs of 4 bits in groups of 32 take as many words and scales as 32 of 8 in groups of 16.

    The description of one matrix is used for those that are like it."""
    wide = integers("pack-quantized", 4, group_size=32)
    narrow = integers("pack-quantized", 8, group_size=16)
    groups, tensors = {}, {}
    for number, (case, inputs) in enumerate(((wide, 64), (narrow, 32))):
        settings = case.config["config_groups"]["group_0"] | {"format": "pack-quantized"}
        groups[f"group_{number}"] = settings
        parts, _ = case.write(random_matrix(40, inputs))
        tensors |= {f"{number}{ending}": tensor for ending, tensor in parts.items()}
    config = wide.config | {"format": "mixed-precision", "config_groups": groups}
    checkpoint = write_tensors(tmp_path, tensors, config)
    stored = [checkpoint.stored(f"{number}.weight") for number in range(2)]
    assert [one.shape for one in stored] == [(40, 64), (40, 32)]
    assert all(
        one.format == checkpoint.matrix(f"{n}.weight").format for n, one in enumerate(stored)
    )


def test_old_files_say_in_a_file_of_their_own_how_they_are_quantized(tmp_path: Path) -> None:
    parts, values = GPTQ.write(random_matrix())
    settings = {"bits": 4, "group_size": 32, "desc_act": False}
    (tmp_path / "quantize_config.json").write_text(json.dumps(settings))
    checkpoint = write_tensors(tmp_path, parts_of(parts), None)
    assert checkpoint.quantization == "gptq"
    assert torch.equal(checkpoint.tensor(MATRIX), values)


@pytest.mark.parametrize("key", ["checkpoint_format", "format"])
def test_gptq_s_version_is_read_under_both_of_its_names(key: str, tmp_path: Path) -> None:
    case = CASES["gptq, version 2"]
    parts, values = case.write(random_matrix())
    config = {name: value for name, value in case.config.items() if name != "checkpoint_format"}
    checkpoint = write_tensors(tmp_path, parts_of(parts), config | {key: "gptq_v2"})
    assert torch.equal(checkpoint.tensor(MATRIX), values)
    with pytest.raises(ConfigError, match=f"{key} 'marlin', which is not supported"):
        write_tensors(tmp_path, parts_of(parts), config | {key: "marlin"})


def test_modelopt_s_fp8_is_read(tmp_path: Path) -> None:
    parts, values = CASES["fp8, one scale"].write(random_matrix())
    settings = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
    checkpoint = write_tensors(tmp_path, parts_of(parts), None)
    assert torch.equal(checkpoint.tensor(MATRIX), values)
    settings["quantization"]["quant_algo"] = "NVFP4"
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"quant_algo 'NVFP4', which is not supported.*FP8"):
        write_tensors(tmp_path, parts_of(parts), None)


def weights_of(case: Any, **changes: Any) -> dict[str, Any]:
    settings = case.config["config_groups"]["group_0"]["weights"] | changes
    return case.config | {"config_groups": {"group_0": {"weights": settings}}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown method": ({"quant_method": "bitsandbytes"}, "'bitsandbytes'.*supported: awq"),
    "no method": ({}, "quant_method ''.*not supported"),
    "method of the wrong kind": ({"quant_method": 4}, "quant_method .* must be a string"),
    "awq gemv": (AWQ.config | {"version": "gemv"}, "version 'gemv'.*supported: gemm"),
    "awq of 8 bits": (AWQ.config | {"bits": 8}, "bits 8, which is not supported; supported: 4"),
    "awq without group size": ({"quant_method": "awq"}, "lacks group_size"),
    "group size of zero": (AWQ.config | {"group_size": 0}, "group_size .* positive or -1, got 0"),
    "gptq of 5 bits": (GPTQ.config | {"bits": 5}, "bits 5, which .*supported: 2, 3, 4, 8"),
    "gptq marlin": (GPTQ.config | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    "gptq per module": (
        GPTQ.config | {"dynamic": {"-:lm_head": {}, "+:down": {"bits": 8}}},
        r"settings for single modules.*dynamic '\+:down'",
    ),
    "fp8 block": ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "two positive integers"),
    "fp8 e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'.*supported: e4m3"),
    "no groups": (PACKED.config | {"config_groups": {}}, "must have config_groups"),
    "fp4": (PACKED.config | {"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized'"),
    "sparse": (PACKED.config | {"sparsity_config": {"format": "24"}}, "format '24'"),
    "rotated": (PACKED.config | {"transform_config": {"config_groups": {"r": 1}}}, "rotates"),
    "float in int": (weights_of(PACKED, type="float"), "type 'float'.*supported: int"),
    "strategy": (weights_of(PACKED, strategy="tensor_group"), "strategy 'tensor_group'"),
    "only activations": (
        PACKED.config | {"config_groups": {"group_0": {"input_activations": {}}}},
        "quantizes only activations",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_settings_that_are_not_supported_are_refused(case: str, tmp_path: Path) -> None:
    config, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        write_tensors(tmp_path, {"a": torch.ones(1)}, config)


def test_a_quantized_checkpoint_without_quantized_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantized with awq, but has no .*ends in \.qweight"):
        write_tensors(tmp_path, {MATRIX: random_matrix()}, AWQ.config)


def test_a_matrix_that_is_there_quantized_and_not_is_refused(tmp_path: Path) -> None:
    parts, _ = AWQ.write(random_matrix())
    with pytest.raises(ConfigError, match=f"has {MATRIX} twice: quantized and not quantized"):
        write_tensors(tmp_path, parts_of(parts) | {MATRIX: random_matrix()}, AWQ.config)


def damage(parts: dict[str, torch.Tensor], ending: str, kind: str) -> dict[str, torch.Tensor]:
    part = parts[ending]
    damaged = {
        "missing": None,
        "short": part[:-1],
        "of another type": part.to(torch.int16),
        "flat": part.flatten(),
        "empty": part[:0],
    }[kind]
    kept = {name: tensor for name, tensor in parts.items() if name != ending}
    return kept if damaged is None else kept | {ending: damaged}


DAMAGES = [
    ("awq", ".qzeros", "missing", r"its part \.qzeros is missing"),
    ("awq", ".scales", "short", "has scales float16 or bfloat16 or float32"),
    ("awq", ".qweight", "of another type", r"\.qweight must be int32 with 2 dimensions, not int16"),
    ("awq", ".qzeros", "flat", r"\.qzeros must be int32 with 2 dimensions"),
    ("gptq", ".qzeros", "short", "has zero points uint8"),
    ("gptq", ".scales", "flat", r"\.scales must be float16"),
    ("gptq, act-order", ".g_idx", "short", r"has group_of int32 \[96\]"),
    ("fp8, blocks", ".weight_scale_inv", "short", r"has scales \[2, 3\], not \[1, 3\]"),
    ("fp8, blocks", ".weight", "of another type", r"\.weight must be float8_e4m3fn"),
    ("awq", ".qweight", "empty", r"\.qweight is empty: \[0, 5\]"),
    ("gptq", ".qzeros", "empty", r"\.qzeros is empty: \[0, 5\]"),
    ("fp8, one scale", ".weight", "empty", r"\.weight is empty"),
    ("compressed-tensors, int8", ".weight_scale", "empty", r"\.weight_scale is empty"),
    (
        "compressed-tensors, int4, zero points",
        ".weight_zero_point",
        "missing",
        r"part \.weight_zero_point is missing",
    ),
    (
        "compressed-tensors, int8, zero points",
        ".weight_zero_point",
        "missing",
        r"part \.weight_zero_point is missing",
    ),
    ("compressed-tensors, int4", ".weight_shape", "missing", r"part \.weight_shape is missing"),
    ("compressed-tensors, int4", ".weight_packed", "short", "fit none of the .*config_groups"),
    ("compressed-tensors, int8", ".weight", "of another type", "fit none of"),
]


@pytest.mark.parametrize(("case", "ending", "kind", "message"), DAMAGES)
def test_damaged_parts_are_refused_and_the_matrix_is_named(
    case: str, ending: str, kind: str, message: str, tmp_path: Path
) -> None:
    parts, _ = CASES[case].write(random_matrix())
    tensors = parts_of(damage(parts, ending, kind))
    with pytest.raises(ConfigError, match=f"{MATRIX} of .*{message}"):
        write_tensors(tmp_path, tensors, CASES[case].config).matrix(MATRIX)


def test_a_group_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    parts, _ = CASES["gptq, act-order"].write(random_matrix())
    parts[".g_idx"][7] = 3
    checkpoint = write_tensors(tmp_path, parts_of(parts), CASES["gptq, act-order"].config)
    with pytest.raises(ConfigError, match="names a group that is not below 3"):
        checkpoint.matrix(MATRIX)
