"""The suite for linear backends: products of every kind, compared with float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ..computing import LazyModule, devices_to_try

if TYPE_CHECKING:
    from ....backends.linear.base import LinearSpec
    from . import checks
    from .checks import BackendClass
else:
    checks = LazyModule(f"{__package__}.checks")


class LinearConformance:
    """The suite for a linear backend.

    Subclass it as Test..., with a fixture `linear_backend` that returns the backend's class. A
    fixture `device` may name the device. Without it, tests run on the GPU if there is one and the
    backend supports it, else on the CPU.
    """

    @pytest.fixture
    def device(self) -> str | None:
        return None

    @pytest.fixture
    def spec(self, linear_backend: BackendClass, device: str | None) -> LinearSpec:
        """A specification that the backend serves. If there is none, the test is skipped."""
        refusals = []
        for candidate in devices_to_try(device):
            try:
                return checks.find_spec(linear_backend, candidate)
            except checks.Refused as refusal:
                refusals.append(str(refusal))
            except Exception as error:
                pytest.skip(f"reasons_against raises, which another test reports: {error}")
        pytest.skip(f"refused: {'; '.join(refusals)}")

    def test_reasons_and_kept_formats_are_told_for_any_specification(
        self, linear_backend: BackendClass, device: str | None
    ) -> None:
        """`reasons_against` returns a list of texts, and `keeps` a bool; neither raises."""
        for candidate in devices_to_try(device):
            checks.check_reasons(linear_backend, candidate)

    @pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "with a bias"])
    def test_products_equal_the_reference(
        self, linear_backend: BackendClass, spec: LinearSpec, has_bias: bool
    ) -> None:
        """x W^T + b is right for any number of rows and outputs."""
        checks.check_products(linear_backend, spec, has_bias=has_bias)

    def test_kept_weights_are_multiplied_as_they_are(
        self, linear_backend: BackendClass, spec: LinearSpec
    ) -> None:
        """Products with packed weights equal those with the dequantized ones."""
        for name in checks.kept_formats(linear_backend, spec):
            checks.check_kept(linear_backend, spec, name)

    def test_segments_are_one_matrix_in_their_order(
        self, linear_backend: BackendClass, spec: LinearSpec
    ) -> None:
        """Segments may differ in format and size; their results stand side by side."""
        checks.check_segments(linear_backend, spec)

    @pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
    def test_gate_and_up_equal_the_reference(
        self, linear_backend: BackendClass, spec: LinearSpec, activation: str
    ) -> None:
        """The activation applies to gate; the bias has gate's numbers first."""
        checks.check_gate_up(linear_backend, spec, activation)

    def test_a_head_returns_float32(self, linear_backend: BackendClass, spec: LinearSpec) -> None:
        """Logits are float32, not rounded to the model's type."""
        checks.check_head(linear_backend, spec)

    def test_rows_do_not_change_each_other(
        self, linear_backend: BackendClass, spec: LinearSpec
    ) -> None:
        """One request's NaN stays in its row: the rows of other requests keep their bits."""
        checks.check_neighbours(linear_backend, spec)

    def test_inputs_and_weights_stay_as_they_are(
        self, linear_backend: BackendClass, spec: LinearSpec
    ) -> None:
        """A projection may be called again with the same inputs."""
        checks.check_weights_are_kept(linear_backend, spec)
