"""The suite for attention backends: a random step at a time, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

# The checks are imported where they run: they need torch, which the rest of the kit does not.
if TYPE_CHECKING:
    from ....backends.attention.base import AttentionSpec
    from .checks import BackendClass

_CASES: dict[str, dict[str, Any]] = {
    **{f"blocks of {size}": {"block_size": size} for size in (1, 5, 8, 16, 32, 64, 128, 256)},
    **{f"heads of {size}": {"head_size": size} for size in (16, 64, 80, 96, 128, 192, 256)},
    **{name: {"dtype": name} for name in ("float32", "bfloat16", "float16")},
}


class AttentionConformance:
    """Subclass it as Test..., with a fixture `attention_backend` that returns the backend's class.

    What the backend has reasons against is skipped, with these. A fixture `device` may name the
    device; without one it is the GPU, if there is one and the backend takes it, and the CPU else.
    """

    @pytest.fixture
    def device(self) -> str | None:
        return None

    @pytest.fixture
    def spec(self, attention_backend: BackendClass, device: str | None) -> AttentionSpec:
        """Something small that the backend takes."""
        return _find_spec(attention_backend, device)

    @pytest.fixture
    def sound_spec(self, attention_backend: BackendClass, spec: AttentionSpec) -> AttentionSpec:
        """The same, if a plain step is right: else other tests say so."""
        unsound = _why_unsound(attention_backend, spec)
        if unsound is not None:
            pytest.skip(f"a plain step fails: {unsound}")
        return spec

    def test_reasons_are_told_for_any_specification(
        self, attention_backend: BackendClass, device: str | None
    ) -> None:
        """A list of texts, never an exception, however odd the model is."""
        from . import checks as checks

        for candidate in _devices(device):
            checks.check_reasons(attention_backend, candidate)

    def test_the_cache_takes_the_memory_that_is_counted(
        self, attention_backend: BackendClass, spec: AttentionSpec
    ) -> None:
        """Keys and values of its blocks, and nothing else."""
        from . import checks as checks

        checks.check_cache_size(attention_backend, spec)

    @pytest.mark.parametrize("case", _CASES)
    def test_steps_equal_the_reference(
        self, attention_backend: BackendClass, spec: AttentionSpec, case: str
    ) -> None:
        """Decodes, prompts, chunks and all at once; in every block size, head size and precision
        that it takes."""
        _skip_if_refused(_check_plain_steps, attention_backend, spec, **_CASES[case])

    def test_query_heads_share_kv_heads(
        self, attention_backend: BackendClass, spec: AttentionSpec
    ) -> None:
        """Grouped heads, in several ratios."""
        from . import checks as checks

        unsound = _why_unsound(attention_backend, replace(spec, num_kv_heads=spec.num_heads))
        if unsound is not None:
            pytest.skip(f"a plain step fails: {unsound}")
        _skip_if_refused(checks.check_shared_heads, attention_backend, spec)

    def test_sequences_share_blocks(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Those that begin alike."""
        from . import checks as checks

        checks.check_shared_prefix(attention_backend, sound_spec)

    def test_only_the_window_is_seen(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Where it takes sliding windows."""
        from . import checks as checks

        _skip_if_refused(checks.check_window, attention_backend, sound_spec)

    def test_scores_are_capped(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Where it takes a soft cap."""
        from . import checks as checks

        _skip_if_refused(checks.check_soft_cap, attention_backend, sound_spec)

    def test_keys_and_values_are_kept_in_8_bits(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Where it takes a cache of them: its steps are right for what they were rounded to."""
        from . import checks as checks

        _skip_if_refused(checks.check_fp8, attention_backend, sound_spec)

    def test_unused_blocks_are_not_read(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """NaN in them changes nothing."""
        from . import checks as checks

        checks.check_unused_blocks(attention_backend, sound_spec)

    def test_other_sequences_are_untouched(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Those in the cache that are not in the step."""
        from . import checks as checks

        checks.check_other_sequences(attention_backend, sound_spec)

    def test_a_sequence_of_nan_spoils_no_other(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """One request's failure does not end another's."""
        from . import checks as checks

        checks.check_neighbours(attention_backend, sound_spec)

    def test_inputs_may_be_slices_of_one_projection(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """With strides between tokens; and they are only read."""
        from . import checks as checks

        checks.check_views(attention_backend, sound_spec)

    def test_metadata_serves_every_layer(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """It is built once per step."""
        from . import checks as checks

        checks.check_layers(attention_backend, sound_spec)

    def test_blocks_are_copied_to_the_host_and_back(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """For swapping."""
        from . import checks as checks

        checks.check_copies(attention_backend, sound_spec)

    def test_graphs_compute_what_is_filled_in(
        self, attention_backend: BackendClass, sound_spec: AttentionSpec
    ) -> None:
        """Unless it says that it cannot be captured."""
        from . import checks as checks

        checks.check_graphs(attention_backend, sound_spec)


def _devices(device: str | None) -> list[Any]:
    import torch

    if device is not None:
        return [torch.device(device)]
    names = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    return [torch.device(name) for name in names]


def _find_spec(backend: BackendClass, device: str | None) -> AttentionSpec:
    from . import checks as checks

    refusals = []
    for candidate in _devices(device):
        try:
            return checks.find_spec(backend, candidate)
        except checks.Refused as refusal:
            refusals.append(str(refusal))
        except Exception as error:
            pytest.skip(f"reasons_against raises, another test says so: {error}")
    pytest.skip(f"refused {'; '.join(refusals)}")


@cache
def _why_unsound(backend: BackendClass, spec: AttentionSpec) -> str | None:
    from . import checks as checks

    try:
        checks.check_step(backend, spec, "mixed")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _check_plain_steps(backend: BackendClass, spec: AttentionSpec, **changes: Any) -> None:
    """Every batch, with a KV head for each query head."""
    import torch

    from . import checks as checks

    if "dtype" in changes:
        changes["dtype"] = getattr(torch, changes["dtype"])
    varied = checks.vary(backend, spec, num_kv_heads=spec.num_heads, **changes)
    for batch in checks.BATCHES:
        checks.check_step(backend, varied, batch)


def _skip_if_refused(check: Callable[..., None], *arguments: Any, **changes: Any) -> None:
    from . import checks as checks

    try:
        check(*arguments, **changes)
    except checks.Refused as refusal:
        pytest.skip(f"refused: {refusal}")
