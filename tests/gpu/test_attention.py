"""Every backend that can be loaded here, in the shapes of real models, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenmill.testing.conformance.attention import checks as attention_checks

from .cases import BLOCKS, CASES
from .checks import check_poisoned_step, check_step, check_waits, check_writes
from .contenders import load_for, skip_without_device

skip_without_device()

Record = Callable[[str, object], None]
WHOLE_BLOCK = 128
"""Slots of the least block that FlashAttention 3 and 4 read whole, for heads of 128 elements."""


@pytest.mark.parametrize("name", CASES)
def test_equals_float64(backend_name: str, name: str, record_property: Record) -> None:
    case = CASES[name]
    record_property("max_error", check_step(load_for(backend_name, case.spec), case))


@pytest.mark.parametrize("name", BLOCKS)
def test_nan_where_no_token_lies_is_not_seen(
    backend_name: str, name: str, record_property: Record
) -> None:
    case = BLOCKS[name]
    if backend_name.startswith("flash-attn") and case.spec.block_size >= WHOLE_BLOCK:
        pytest.skip("FlashAttention 3 and 4 read such blocks whole: unused slots must be finite")
    record_property("max_error", check_poisoned_step(load_for(backend_name, case.spec), case))


@pytest.mark.parametrize("name", BLOCKS)
def test_writes_its_tokens_and_nothing_else(backend_name: str, name: str) -> None:
    case = BLOCKS[name]
    check_writes(load_for(backend_name, case.spec), case)


@pytest.mark.parametrize("name", ["decodes, plain", "mixed, plain", "long and short"])
def test_nothing_waits_for_the_device(backend_name: str, name: str) -> None:
    """No step, after the first of its kind, has torch synchronize."""
    case = CASES[name]
    check_waits(load_for(backend_name, case.spec), case)


@pytest.mark.parametrize("name", BLOCKS)
def test_captured_steps_compute_what_is_filled_in(backend_name: str, name: str) -> None:
    spec = BLOCKS[name].spec
    attention_checks.check_graphs(load_for(backend_name, spec), spec)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_go_to_the_host_and_back(backend_name: str, name: str) -> None:
    spec = BLOCKS[name].spec
    attention_checks.check_copies(load_for(backend_name, spec), spec)
