"""Quantized checkpoints that lie: settings and tensors with absurd values are refused in a line."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.weights.hostile_directories import ABSURD
from tokenmill.core.errors import ConfigError

from .checkpoints import MATRIX, MODULE, write_tensors
from .writers import CASES

NAMES = ["awq", "gptq, act-order", "fp8, blocks", "compressed-tensors, int4, zero points"]
EXTRA = ["dynamic", "sparsity_config", "transform_config", "checkpoint_format", "format", "fmt"]
SIZE = 8, 64
SOAK = 1000
"""Changed settings, and as many damaged tensors, of each kind of checkpoint in `make soak`."""


@st.composite
def changed(draw: st.DrawFn, config: dict[str, Any]) -> dict[str, Any]:
    """The settings with one to three values changed, at any depth."""
    config = copy.deepcopy(config)
    for _ in range(draw(st.integers(1, 3))):
        part = config
        while True:
            key = draw(st.sampled_from([*part, *EXTRA]))
            inner = part.get(key)
            if not isinstance(inner, dict) or not inner or draw(st.booleans()):
                break
            part = inner
        part[key] = copy.deepcopy(draw(st.sampled_from(ABSURD)))
    return config


@st.composite
def damaged(draw: st.DrawFn, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a matrix, one of which has another type, shape or other numbers."""
    ending = draw(st.sampled_from(sorted(parts)))
    part = parts[ending]
    kinds = [
        lambda: part.reshape(-1),
        lambda: part.reshape(-1)[:0],
        lambda: part.unsqueeze(0),
        lambda: part[:1],
        lambda: part.repeat(2, *[1] * (part.ndim - 1)),
        lambda: part.reshape(-1)[0],
        lambda: part.float(),
        lambda: part.to(torch.int64),
        lambda: torch.full_like(part.float(), 1e30).to(part.dtype),
        lambda: (-part.float()).to(part.dtype),
    ]
    return parts | {ending: draw(st.sampled_from(kinds))()}


def read(path: Path, parts: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Read the matrix; a ConfigError must be one line of readable length."""
    tensors = {MODULE + ending: tensor for ending, tensor in parts.items()}
    try:
        write_tensors(path, tensors, config).tensor(MATRIX)
    except ConfigError as error:
        assert str(error).isprintable() and len(str(error)) < 1000, error
        raise


@pytest.mark.parametrize("name", NAMES)
def test_absurd_settings_and_tensors_are_refused_or_harmless(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, 60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_many_absurd_settings_and_tensors_are_refused_or_harmless(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", 2 * SOAK)
    fuzz(name, tmp_path, SOAK)


def fuzz(name: str, path: Path, num_cases: int) -> None:
    """Try this number of changed settings, and of damaged tensors."""
    case = CASES[name]
    parts, _ = case.write(torch.ones(SIZE))

    @settings(max_examples=num_cases, deadline=None)
    @given(config=changed(case.config))
    def check_settings(config: dict[str, Any]) -> None:
        with suppress(ConfigError):
            read(path, parts, config)

    @settings(max_examples=num_cases, deadline=None)
    @given(tensors=damaged(parts))
    def check_tensors(tensors: dict[str, torch.Tensor]) -> None:
        with suppress(ConfigError):
            read(path, tensors, case.config)

    check_settings()
    check_tensors()
