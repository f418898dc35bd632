"""Matrices that other packages quantized; see make_foreign.py."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from .checkpoints import MATRIX, MODULE, write_tensors

FILE = Path(__file__).with_name("foreign.safetensors")
with safe_open(FILE, framework="pt") as opened:
    METADATA = opened.metadata()
    TENSORS = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
CASES = [name for name in METADATA if "/" not in name]


@pytest.mark.parametrize("case", CASES)
def test_a_foreign_matrix_has_the_foreign_package_s_numbers(case: str, tmp_path: Path) -> None:
    parts = {
        name.removeprefix(f"{case}/"): tensor
        for name, tensor in TENSORS.items()
        if name.startswith(f"{case}/")
    }
    expected = parts.pop("expected", None)
    tensors = {f"{MODULE}.{name}": tensor for name, tensor in parts.items()}
    checkpoint = write_tensors(tmp_path, tensors, json.loads(METADATA[case]))
    values = checkpoint.tensor(MATRIX)
    if expected is None:
        digest = hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()
        assert digest == METADATA[f"{case}/sha256"]
    else:  # rounded to bfloat16, and made with a scale that was not yet rounded to float16
        torch.testing.assert_close(values, expected.float(), rtol=2**-8 + 2**-10, atol=1e-6)


def test_there_are_foreign_matrices_of_every_method() -> None:
    methods = {json.loads(METADATA[case])["quant_method"] for case in CASES}
    assert methods == {"awq", "gptq", "compressed-tensors"}
