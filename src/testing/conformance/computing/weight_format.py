"""The suite for weight formats: a quantized matrix, read from the tensors of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ....backends.weights.config.fields import Fields
from ....backends.weights.huggingface.checkpoint import SafetensorsCheckpoint
from ....backends.weights.packed import PackedWeights, stack
from ....backends.weights.quantization.method import Method, Parts
from ....backends.weights.quantization.methods import ReadMethod
from ....backends.weights.quantization.sample import QuantizedSample
from ....core.errors import ConfigError
from ....core.members import WRITE_SAMPLE
from ..suites import suite

WriteSample = Callable[[torch.Tensor], QuantizedSample]

_OUTPUTS, _INPUTS = 48, 512
_STEM = "model.layers.0.self_attn.q_proj"
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": _INPUTS,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 16,
}
_ABSURD: tuple[Any, ...] = (None, True, -1, 0, 3, 10**18, 0.5, "", "x", [], [1, 2], {}, {"a": {}})


def check_settings_are_accepted_or_refused(weight_format: ReadMethod) -> None:
    """Absent settings are accepted, or refused with a ConfigError; nothing else is raised."""
    _check_settings(weight_format, {})


def check_absurd_settings_are_accepted_or_refused(
    weight_format: ReadMethod, write_sample: WriteSample | None = None
) -> None:
    """Each setting of the sample may have any value: nothing but ConfigError is raised."""
    sample = _sample(weight_format, write_sample)
    for name in sample.settings:
        for value in _ABSURD:
            _check_settings(weight_format, {**sample.settings, name: value})


def check_one_tensor_marks_a_matrix(
    weight_format: ReadMethod, write_sample: WriteSample | None = None
) -> None:
    """`endings` has the endings of a matrix's tensors, of which exactly one is in `markers`."""
    sample = _sample(weight_format, write_sample)
    method, _ = _read(weight_format, sample)
    unknown = sample.tensors.keys() - set(method.endings)
    assert not unknown, f"`endings` lacks {', '.join(sorted(unknown))}"
    found = [ending for ending in sample.tensors if ending.endswith(method.markers)]
    assert len(found) == 1, (
        f"exactly one tensor of a matrix ends in one of `markers` {method.markers}, not {found}"
    )


def check_a_matrix_has_the_numbers_of_the_sample(
    weight_format: ReadMethod, write_sample: WriteSample | None = None
) -> None:
    """`read`, `restore` and `dequantize` keep the numbers, in fewer bytes than bfloat16 has."""
    sample = _sample(weight_format, write_sample)
    method, weights = _read(weight_format, sample)
    rows, inputs = weights.shape
    assert rows * inputs == sample.matrix.numel(), (
        f"`read` returned a matrix {list(weights.shape)} for {list(sample.matrix.shape)}"
    )
    restored = method.restore(Parts(sample.tensors), weights)
    assert restored.dtype is torch.float32, f"`restore` returned {restored.dtype}, not float32"
    assert torch.equal(restored, sample.matrix), "the restored matrix has other numbers"
    if sample.matrix.dim() == 2:
        assert torch.equal(weights.dequantize(), sample.matrix), "other numbers when dequantized"
    assert weights.num_bytes < 2 * sample.matrix.numel(), "it takes more memory than bfloat16"


def check_parts_and_stacks_have_the_numbers_of_the_whole(
    weight_format: ReadMethod, write_sample: WriteSample | None = None
) -> None:
    """Parts of a matrix have the numbers of these parts, and stacked parts those of the whole."""
    sample = _sample(weight_format, write_sample)
    _, weights = _read(weight_format, sample)
    whole, block = weights.dequantize(), weights.format.block_size
    half = weights.shape[1] // 2 // block * block
    for dim, cuts in ((0, (0, 5, weights.shape[0])), (1, (0, half, weights.shape[1]))):
        for start, end in pairwise(cuts):
            found = weights.narrow(dim, start, end - start)
            wanted = whole.narrow(dim, start, end - start)
            assert torch.equal(found.dequantize(), wanted), (
                f"narrow({dim}, {start}, {end - start}) has the numbers of another part"
            )
    rest = weights.shape[0] - 5
    stacked = stack([weights.narrow(0, 5, rest), weights.narrow(0, 0, 5)])
    assert torch.equal(stacked.dequantize(), torch.cat((whole[5:], whole[:5]))), (
        "stacked parts have other numbers, or another order"
    )


def check_equal_formats_are_equal(
    weight_format: ReadMethod, write_sample: WriteSample | None = None
) -> None:
    """Matrices that can be stacked have formats that are equal and have equal hashes."""
    sample = _sample(weight_format, write_sample)
    first, second = (_read(weight_format, sample)[1] for _ in range(2))
    assert first.format == second.format, "the same matrix, read twice, has two formats"
    assert len({first.format, second.format}) == 1, "equal formats have different hashes"
    assert isinstance(first.format.name, str) and first.format.name, "a format has a name"


def check_damaged_tensors_are_refused(
    weight_format: ReadMethod, write_sample: WriteSample | None = None
) -> None:
    """A tensor that is missing, cut or of another type raises ConfigError, or changes nothing.

    Another shape is allowed, because the loader refuses it. Tensors without the marker
    are not a matrix of the format.
    """
    sample = _sample(weight_format, write_sample)
    method = weight_format(Fields(sample.settings, "config.json"))
    for ending, tensor in sample.tensors.items():
        for what, damaged in _damages(tensor):
            if damaged is None and ending.endswith(method.markers):
                continue
            tensors = {name: one for name, one in sample.tensors.items() if name != ending}
            if damaged is not None:
                tensors[ending] = damaged
            _check_damaged(method, sample, tensors, f"{ending} {what}")


def check_a_directory_has_the_matrix(
    weight_format: ReadMethod, tmp_path: Path, write_sample: WriteSample | None = None
) -> None:
    """A checkpoint with these tensors has the matrix under transformers' name."""
    sample = _sample(weight_format, write_sample)
    method, weights = _read(weight_format, sample)
    name = _STEM + method.matrix_ending
    settings = {**sample.settings, "quant_method": method.name}
    config = {**_LLAMA, "quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {_STEM + ending: one.contiguous() for ending, one in sample.tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path, methods={method.name: weight_format})
    assert checkpoint.quantization == method.name
    assert checkpoint.tensor_names() == (name,), f"it has {checkpoint.tensor_names()}, not {name}"
    stored = checkpoint.stored(name)
    assert not isinstance(stored.format, torch.dtype), "it is described as if it were not packed"
    described = stored.shape, stored.format.name, stored.num_bytes
    wanted = weights.shape, weights.format.name, weights.num_bytes
    assert described == wanted, f"it is described as {described}, and read as {wanted}"
    restored = method.restore(Parts(sample.tensors), weights)
    assert torch.equal(checkpoint.tensor(name), restored), "it has other numbers than alone"


@suite
class WeightFormatConformance:
    """The suite for a weight format.

    Subclass it as Test..., with a fixture `weight_format` that returns the reader of settings. A
    fixture `write_sample` returns a function that quantizes a matrix. Without it, the reader's own
    `write_sample(weights)` does; without that, only settings are tested.
    """


def _sample(reader: ReadMethod, write_sample: WriteSample | None) -> QuantizedSample:
    """A random matrix, quantized by the provider."""
    write: WriteSample | None = write_sample or WRITE_SAMPLE.of(reader)
    if write is None:
        pytest.skip("the weight format has no write_sample(weights)")
    generator = torch.Generator().manual_seed(0)
    return write(torch.randn(_OUTPUTS, _INPUTS, generator=generator))


def _read(reader: ReadMethod, sample: QuantizedSample) -> tuple[Method, PackedWeights]:
    """The method of a sample's settings, and its matrix."""
    method = reader(Fields(sample.settings, "config.json"))
    return method, method.read(Parts(sample.tensors))


def _check_settings(reader: ReadMethod, settings: Mapping[str, Any]) -> None:
    try:
        method = reader(Fields(settings, "config.json"))
    except ConfigError as error:
        assert str(error).isprintable(), f"a message is one line, not {str(error)!r}"
    else:
        assert isinstance(method, Method), f"the reader returned {method!r}, not a Method"


def _damages(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor | None]]:
    return [
        ("missing", None),
        ("with a row less", tensor[:-1] if tensor.dim() else tensor),
        ("empty", tensor.flatten()[:0]),
        ("with a dimension more", tensor.unsqueeze(0)),
        ("of another type", torch.zeros(tensor.shape, dtype=torch.complex64)),
    ]


def _check_damaged(
    method: Method,
    sample: QuantizedSample,
    tensors: Mapping[str, torch.Tensor],
    what: str,
) -> None:
    try:
        restored = method.restore(Parts(tensors), method.read(Parts(tensors)))
    except ConfigError:
        return
    except Exception as error:
        raise AssertionError(
            f"{what}: {type(error).__name__} instead of ConfigError: {error}"
        ) from error
    if restored.shape == sample.matrix.shape:
        assert torch.equal(restored, sample.matrix), f"{what} is read with wrong numbers"
