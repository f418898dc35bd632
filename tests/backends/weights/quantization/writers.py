"""Writers of quantized matrices, one number at a time, from the descriptions of the layouts.

They share no code with the readers. Each rounds a matrix and returns the tensors of the file
together with the numbers that they stand for, float32 [out, in].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The outputs of a word, from its lowest 4 bits to its highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A rounded matrix: value = (q - zero[group]) * scale[group]."""

    q: NDArray[np.int64]
    """[out, in]."""
    zeros: NDArray[np.int64]
    """[out, groups]."""
    scales: NDArray[np.float32]
    """[out, groups], in numbers that float16 has."""
    group_of: NDArray[np.int32]
    """[in]."""

    @property
    def values(self) -> torch.Tensor:
        shifted = (self.q - self.zeros[:, self.group_of]).astype(np.float32)
        return torch.from_numpy(shifted * self.scales[:, self.group_of])


Written = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Tensors by the endings of their names, and the matrix."""


def quantize(
    weights: torch.Tensor,
    *,
    bits: int,
    group_size: int,
    symmetric: bool = True,
    group_of: Sequence[int] | None = None,
) -> Quantized:
    """Round to the nearest; `group_of` names other groups than successive inputs."""
    w = weights.double().numpy()
    groups = np.array(group_of if group_of is not None else np.arange(w.shape[1]) // group_size)
    top, num_groups = 2**bits - 1, int(groups.max()) + 1
    zeros = np.full((len(w), num_groups), 2 ** (bits - 1))
    scales = np.zeros((len(w), num_groups), dtype=np.float32)
    q = np.zeros(w.shape, dtype=np.int64)
    for group in range(num_groups):
        part = w[:, groups == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        reach = np.maximum(-low, high) * 2 if symmetric else high - low
        scale = (reach / top).astype(np.float16).astype(np.float32)
        if not symmetric:
            # AutoGPTQ's first version cannot say 0 safely: it stores the zero point minus one.
            zeros[:, group] = np.clip(np.round(-low / scale), 1, top)
        scales[:, group] = scale
        rounded = np.round(part / scale[:, None]) + zeros[:, group, None]
        q[:, groups == group] = np.clip(rounded, 0, top)
    return Quantized(q=q, zeros=zeros, scales=scales, group_of=groups.astype(np.int32))


def pack_rows(rows: NDArray[np.int64], bits: int) -> NDArray[np.int32]:
    """Each row as one long number, lowest integer first, cut into words of 32 bits."""
    num_words = -(-rows.shape[1] * bits // 32)
    packed = []
    for row in rows:
        number = sum(int(value) << (bits * place) for place, value in enumerate(row))
        packed.append(np.frombuffer(number.to_bytes(4 * num_words, "little"), dtype="<i4"))
    return np.stack(packed)


def gptq(made: Quantized, bits: int, *, version: int = 1) -> Written:
    zeros = made.zeros - 1 if version == 1 else made.zeros
    tensors = {
        ".qweight": pack_rows(made.q, bits).T,
        ".qzeros": pack_rows(zeros.T % 2**bits, bits),
        ".scales": made.scales.T.astype(np.float16),
        ".g_idx": made.group_of,
    }
    return as_tensors(tensors), made.values


def awq(made: Quantized) -> Written:
    def pack(rows: NDArray[np.int64]) -> NDArray[np.int32]:
        order = [8 * (i // 8) + AWQ_ORDER[i % 8] for i in range(rows.shape[1])]
        return pack_rows(rows[:, order], 4)

    tensors = {
        ".qweight": pack(made.q.T),
        ".qzeros": pack(made.zeros.T),
        ".scales": made.scales.T.astype(np.float16),
    }
    return as_tensors(tensors), made.values


def packed_ints(made: Quantized, bits: int, *, symmetric: bool) -> Written:
    """compressed-tensors' pack-quantized."""
    tensors = {
        ".weight_packed": pack_rows(made.q, bits),
        ".weight_scale": made.scales,
        ".weight_shape": np.array(made.q.shape),
    }
    if not symmetric:
        tensors[".weight_zero_point"] = pack_rows(made.zeros.T, bits).T
    if (made.group_of[1:] < made.group_of[:-1]).any():
        tensors[".weight_g_idx"] = made.group_of
    return as_tensors(tensors), made.values


def signed_ints(made: Quantized, *, symmetric: bool) -> Written:
    """compressed-tensors' int-quantized."""
    tensors = {".weight": (made.q - 128).astype(np.int8), ".weight_scale": made.scales}
    if not symmetric:
        tensors[".weight_zero_point"] = (made.zeros - 128).astype(np.int8)
    return as_tensors(tensors), made.values


def fp8(weights: torch.Tensor, block: tuple[int, int], ending: str) -> Written:
    """FP8 with a scale per block of (rows, columns)."""
    rows, columns = block
    num_outputs, num_inputs = weights.shape
    scales = torch.zeros(-(-num_outputs // rows), -(-num_inputs // columns))
    stored = torch.zeros(weights.shape, dtype=torch.float8_e4m3fn)
    values = torch.zeros(weights.shape)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            place = (
                slice(i * rows, (i + 1) * rows),
                slice(j * columns, (j + 1) * columns),
            )
            scales[i, j] = weights[place].abs().max() / 448
            stored[place] = (weights[place] / scales[i, j]).to(torch.float8_e4m3fn)
            values[place] = stored[place].float() * scales[i, j]
    return {".weight": stored, ending: scales}, values


def as_tensors(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to store all matrices of a checkpoint."""

    config: dict[str, Any]
    """The `quantization_config`."""
    write: Callable[[torch.Tensor], Written]


def _gptq(
    bits: int,
    *,
    symmetric: bool = True,
    order: bool = False,
    version: int = 1,
    group_size: int = 32,
) -> Case:
    def write(weights: torch.Tensor) -> Written:
        size = weights.shape[1] if group_size == -1 else group_size
        made = quantize(
            weights,
            bits=bits,
            group_size=size,
            symmetric=symmetric,
            group_of=_shuffled(weights.shape[1], size) if order else None,
        )
        return gptq(made, bits, version=version)

    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": order,
        "sym": symmetric,
        "checkpoint_format": {1: "gptq", 2: "gptq_v2"}[version],
    }
    return Case(config=config, write=write)


def _awq(*, symmetric: bool, group_size: int = 32) -> Case:
    def write(weights: torch.Tensor) -> Written:
        return awq(quantize(weights, bits=4, group_size=group_size, symmetric=symmetric))

    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }
    return Case(config=config, write=write)


def integers(
    format: str,
    bits: int,
    *,
    symmetric: bool = True,
    group_size: int | None = 32,
    order: bool = False,
) -> Case:
    def write(weights: torch.Tensor) -> Written:
        size = group_size or weights.shape[1]
        made = quantize(
            weights,
            bits=bits,
            group_size=size,
            symmetric=symmetric,
            group_of=_shuffled(weights.shape[1], size) if order else None,
        )
        if format == "int-quantized":
            return signed_ints(made, symmetric=symmetric)
        return packed_ints(made, bits, symmetric=symmetric)

    settings = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if group_size is None else "group",
        "group_size": group_size,
    }
    return Case(config=_compressed(format, settings), write=write)


def _float(strategy: str, block: tuple[int, int]) -> Case:
    """`block` 0 stands for the matrix's whole size."""
    settings = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    if strategy == "block":
        settings["block_structure"] = list(block)

    def write(weights: torch.Tensor) -> Written:
        size = (block[0] or weights.shape[0], block[1] or weights.shape[1])
        tensors, values = fp8(weights, size, ".weight_scale")
        if strategy == "tensor":
            tensors |= {".weight_scale": tensors[".weight_scale"].reshape(1)}
            tensors |= {".input_scale": torch.ones(1)}
        return tensors, values

    return Case(config=_compressed("float-quantized", settings), write=write)


def _compressed(format: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": settings}},
        "ignore": ["lm_head"],
    }


def _shuffled(num_inputs: int, group_size: int) -> list[int]:
    groups = np.arange(num_inputs) // group_size
    return [int(group) for group in np.random.default_rng(num_inputs).permutation(groups)]


CASES = {
    "awq": _awq(symmetric=False),
    "awq, symmetric": _awq(symmetric=True),
    "gptq": _gptq(4),
    "gptq, zero points": _gptq(4, symmetric=False),
    "gptq, version 2": _gptq(4, symmetric=False, version=2),
    "gptq, act-order": _gptq(4, order=True),
    "gptq, act-order, zero points": _gptq(4, order=True, symmetric=False),
    "gptq, one group per row": _gptq(4, group_size=-1),
    "gptq, 8 bits": _gptq(8, symmetric=False),
    "gptq, 3 bits": _gptq(3, symmetric=False),
    "gptq, 2 bits": _gptq(2),
    "fp8, blocks": Case(
        config={"quant_method": "fp8", "weight_block_size": [24, 32]},
        write=lambda weights: fp8(weights, (24, 32), ".weight_scale_inv"),
    ),
    "fp8, one scale": Case(
        config={"quant_method": "fp8", "activation_scheme": "static"},
        write=lambda weights: fp8(weights, (weights.shape[0], weights.shape[1]), ".weight_scale"),
    ),
    "compressed-tensors, int4": integers("pack-quantized", 4),
    "compressed-tensors, int4, zero points": integers("pack-quantized", 4, symmetric=False),
    "compressed-tensors, int4, act-order": integers("pack-quantized", 4, order=True),
    "compressed-tensors, int8, packed": integers("pack-quantized", 8, symmetric=False),
    "compressed-tensors, int3": integers("pack-quantized", 3),
    "compressed-tensors, int8": integers("int-quantized", 8, group_size=None),
    "compressed-tensors, int8, zero points": integers(
        "int-quantized", 8, group_size=None, symmetric=False
    ),
    "compressed-tensors, fp8": _float("channel", (1, 0)),
    "compressed-tensors, fp8, one scale": _float("tensor", (0, 0)),
    "compressed-tensors, fp8, blocks": _float("block", (24, 32)),
}
"""Ways that people's checkpoints are quantized, at sizes that tests afford."""
