"""The suite for attention backends: random steps, compared with a reference in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from ....backends.attention.base import AttentionSpec
from ..computing.devices import devices_to_try
from ..suites import suite
from . import checks
from .checks import BackendClass

_CASES: dict[str, dict[str, Any]] = {
    **{f"blocks of {size}": {"block_size": size} for size in (1, 5, 8, 16, 32, 64, 128, 256)},
    **{f"heads of {size}": {"head_size": size} for size in (16, 64, 80, 96, 128, 192, 256)},
    **{name: {"dtype": getattr(torch, name)} for name in ("float32", "bfloat16", "float16")},
}


def check_reasons_are_returned_for_any_specification(
    attention_backend: BackendClass, device: str | None = None
) -> None:
    """`reasons_against` returns a list of texts for any model, and never raises."""
    for candidate in devices_to_try(device):
        checks.check_reasons(attention_backend, candidate)


def check_the_cache_takes_the_memory_that_is_counted(
    attention_backend: BackendClass, device: str | None = None
) -> None:
    """The cache has room for the keys and values of its blocks, and for nothing else."""
    checks.check_cache_size(attention_backend, _find_spec(attention_backend, device))


@pytest.mark.parametrize("case", _CASES)
def check_steps_equal_the_reference(
    attention_backend: BackendClass, case: str, device: str | None = None
) -> None:
    """Steps of decodes, prompts, chunks and a mix of them are right, in every block size, head
    size and precision that the backend accepts."""
    spec = _find_spec(attention_backend, device)
    _skip_if_refused(_check_plain_steps, attention_backend, spec, **_CASES[case])


def check_query_heads_share_kv_heads(
    attention_backend: BackendClass, device: str | None = None
) -> None:
    """Several query heads may share a KV head, in several ratios."""
    spec = _find_spec(attention_backend, device)
    _skip_if_unsound(attention_backend, replace(spec, num_kv_heads=spec.num_heads))
    _skip_if_refused(checks.check_shared_heads, attention_backend, spec)


def _sound(check: Callable[[BackendClass, AttentionSpec], None]) -> Callable[..., None]:
    """A check on a small specification, if a plain step is right: other tests report that."""

    def run(attention_backend: BackendClass, device: str | None = None) -> None:
        spec = _find_spec(attention_backend, device)
        _skip_if_unsound(attention_backend, spec)
        _skip_if_refused(check, attention_backend, spec)

    run.__doc__ = check.__doc__
    return run


check_sequences_share_blocks = _sound(checks.check_shared_prefix)
check_only_the_window_is_seen = _sound(checks.check_window)
check_scores_are_capped = _sound(checks.check_soft_cap)
check_sinks_take_part_in_the_softmax = _sound(checks.check_sinks)
check_tokens_of_an_image_see_each_other = _sound(checks.check_sees_ahead)
check_keys_and_values_are_kept_in_8_bits = _sound(checks.check_fp8)
check_unused_blocks_are_not_read = _sound(checks.check_unused_blocks)
check_other_sequences_are_untouched = _sound(checks.check_other_sequences)
check_a_sequence_of_nan_spoils_no_other = _sound(checks.check_neighbours)
check_inputs_may_be_slices_of_one_projection = _sound(checks.check_views)
check_metadata_serves_every_layer = _sound(checks.check_layers)
check_blocks_are_copied_to_the_host_and_back = _sound(checks.check_copies)
check_graphs_compute_what_is_filled_in = _sound(checks.check_graphs)


@suite
class AttentionConformance:
    """The suite for an attention backend.

    Subclass it as Test..., with a fixture `attention_backend` that returns the backend's class. A
    test of a specification that the backend refuses is skipped, with the backend's reasons. A
    fixture `device` may name the device. Without it, tests run on the GPU if there is one and the
    backend supports it, else on the CPU.
    """


def _find_spec(backend: BackendClass, device: str | None) -> AttentionSpec:
    """A small specification that the backend accepts."""
    refusals = []
    for candidate in devices_to_try(device):
        try:
            return checks.find_spec(backend, candidate)
        except checks.Refused as refusal:
            refusals.append(str(refusal))
        except Exception as error:
            pytest.skip(f"reasons_against raises, which another test reports: {error}")
    pytest.skip(f"refused {'; '.join(refusals)}")


def _skip_if_unsound(backend: BackendClass, spec: AttentionSpec) -> None:
    unsound = _why_unsound(backend, spec)
    if unsound is not None:
        pytest.skip(f"a plain step fails: {unsound}")


@cache
def _why_unsound(backend: BackendClass, spec: AttentionSpec) -> str | None:
    try:
        checks.check_step(backend, spec, "mixed")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _check_plain_steps(backend: BackendClass, spec: AttentionSpec, **changes: Any) -> None:
    """Check every batch, with a KV head for each query head."""
    varied = checks.vary(backend, spec, num_kv_heads=spec.num_heads, **changes)
    for batch in checks.BATCHES:
        checks.check_step(backend, varied, batch)


def _skip_if_refused(check: Callable[..., None], *arguments: Any, **changes: Any) -> None:
    try:
        check(*arguments, **changes)
    except checks.Refused as refusal:
        pytest.skip(f"refused: {refusal}")
