"""The suite for attention backends: random steps, compared with a reference in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from ..computing import LazyModule, devices_to_try

if TYPE_CHECKING:
    from ....backends.attention.base import AttentionSpec
    from . import checks
    from .checks import BackendClass
else:
    checks = LazyModule(f"{__package__}.checks")

_CASES: dict[str, dict[str, Any]] = {
    **{f"blocks of {size}": {"block_size": size} for size in (1, 5, 8, 16, 32, 64, 128, 256)},
    **{f"heads of {size}": {"head_size": size} for size in (16, 64, 80, 96, 128, 192, 256)},
    **{name: {"dtype": name} for name in ("float32", "bfloat16", "float16")},
}


class AttentionConformance:
    """The suite for an attention backend.

    Subclass it as Test..., with a fixture `attention_backend` that returns the backend's class. A
    test of a specification that the backend refuses is skipped, with the backend's reasons. A
    fixture `device` may name the device. Without it, tests run on the GPU if there is one and the
    backend supports it, else on the CPU.
    """

    @pytest.fixture
    def device(self) -> str | None:
        return None

    @pytest.fixture
    def spec(self, attention_backend: BackendClass, device: str | None) -> AttentionSpec:
        """A small specification that the backend accepts."""
        return _find_spec(attention_backend, device)

    @pytest.fixture
    def sound_spec(self, attention_backend: BackendClass, spec: AttentionSpec) -> AttentionSpec:
        """`spec`, if a plain step is right. If not, the test is skipped: others report it."""
        unsound = _why_unsound(attention_backend, spec)
        if unsound is not None:
            pytest.skip(f"a plain step fails: {unsound}")
        return spec

    def test_reasons_are_told_for_any_specification(
        self, attention_backend: BackendClass, device: str | None
    ) -> None:
        """`reasons_against` returns a list of texts for any model, and never raises."""
        for candidate in devices_to_try(device):
            checks.check_reasons(attention_backend, candidate)

    def test_the_cache_takes_the_memory_that_is_counted(
        self, attention_backend: BackendClass, spec: AttentionSpec
    ) -> None:
        """The cache has room for the keys and values of its blocks, and for nothing else."""
        checks.check_cache_size(attention_backend, spec)

    @pytest.mark.parametrize("case", _CASES)
    def test_steps_equal_the_reference(
        self, attention_backend: BackendClass, spec: AttentionSpec, case: str
    ) -> None:
        """Steps of decodes, prompts, chunks and a mix of them are right, in every block size, head
        size and precision that the backend accepts."""
        _skip_if_refused(_check_plain_steps, attention_backend, spec, **_CASES[case])

    def test_query_heads_share_kv_heads(
        self, attention_backend: BackendClass, spec: AttentionSpec
    ) -> None:
        """Several query heads may share a KV head, in several ratios."""
        unsound = _why_unsound(attention_backend, replace(spec, num_kv_heads=spec.num_heads))
        if unsound is not None:
            pytest.skip(f"a plain step fails: {unsound}")
        _skip_if_refused(checks.check_shared_heads, attention_backend, spec)

    def test_sequences_share_blocks(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Sequences with the same beginning may share its blocks."""
        checks.check_shared_prefix(attention_backend, sound_spec)

    def test_only_the_window_is_seen(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """With a sliding window, older tokens are not seen; skipped if the backend has none."""
        _skip_if_refused(checks.check_window, attention_backend, sound_spec)

    def test_scores_are_capped(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """With a soft cap, scores are capped; skipped if the backend has none."""
        _skip_if_refused(checks.check_soft_cap, attention_backend, sound_spec)

    def test_sinks_take_part_in_the_softmax(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """With sinks, the weights of keys are smaller; skipped if the backend has none."""
        _skip_if_refused(checks.check_sinks, attention_backend, sound_spec)

    def test_keys_and_values_are_kept_in_8_bits(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Steps are right for the rounded keys and values of a cache with 8 bits per number;
        skipped if the backend has none."""
        _skip_if_refused(checks.check_fp8, attention_backend, sound_spec)

    def test_unused_blocks_are_not_read(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """NaN in unused blocks changes no result."""
        checks.check_unused_blocks(attention_backend, sound_spec)

    def test_other_sequences_are_untouched(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """A step does not change cached sequences that are not part of it."""
        checks.check_other_sequences(attention_backend, sound_spec)

    def test_a_sequence_of_nan_spoils_no_other(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """NaN in one sequence does not change the results of others."""
        checks.check_neighbours(attention_backend, sound_spec)

    def test_inputs_may_be_slices_of_one_projection(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Inputs may have strides between tokens, and are not changed."""
        checks.check_views(attention_backend, sound_spec)

    def test_metadata_serves_every_layer(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Metadata is built once per step and is valid for every layer."""
        checks.check_layers(attention_backend, sound_spec)

    def test_blocks_are_copied_to_the_host_and_back(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Blocks can be copied to the host and back, as swapping does."""
        checks.check_copies(attention_backend, sound_spec)

    def test_graphs_compute_what_is_filled_in(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """A captured graph computes the inputs that are filled in; skipped if the backend cannot
        be captured."""
        checks.check_graphs(attention_backend, sound_spec)


def _find_spec(backend: BackendClass, device: str | None) -> AttentionSpec:
    refusals = []
    for candidate in devices_to_try(device):
        try:
            return checks.find_spec(backend, candidate)
        except checks.Refused as refusal:
            refusals.append(str(refusal))
        except Exception as error:
            pytest.skip(f"reasons_against raises, which another test reports: {error}")
    pytest.skip(f"refused {'; '.join(refusals)}")


@cache
def _why_unsound(backend: BackendClass, spec: AttentionSpec) -> str | None:
    try:
        checks.check_step(backend, spec, "mixed")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _check_plain_steps(backend: BackendClass, spec: AttentionSpec, **changes: Any) -> None:
    """Check every batch, with a KV head for each query head."""
    import torch

    if "dtype" in changes:
        changes["dtype"] = getattr(torch, changes["dtype"])
    varied = checks.vary(backend, spec, num_kv_heads=spec.num_heads, **changes)
    for batch in checks.BATCHES:
        checks.check_step(backend, varied, batch)


def _skip_if_refused(check: Callable[..., None], *arguments: Any, **changes: Any) -> None:
    try:
        check(*arguments, **changes)
    except checks.Refused as refusal:
        pytest.skip(f"refused: {refusal}")
