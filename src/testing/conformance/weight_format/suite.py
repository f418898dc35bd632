"""The suite for weight formats: a quantized matrix, read from the tensors of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ....core.members import WRITE_SAMPLE
from ..computing import LazyModule

if TYPE_CHECKING:
    from ....backends.weights.quantization.methods import ReadMethod
    from ....backends.weights.quantization.sample import QuantizedSample
    from . import checks
    from .checks import WriteSample
else:
    checks = LazyModule(f"{__package__}.checks")


class WeightFormatConformance:
    """The suite for a weight format.

    Subclass it as Test..., with a fixture `weight_format` that returns the reader of settings. A
    fixture `write_sample` returns a function that quantizes a matrix. Without it, the reader's own
    `write_sample(weights)` does; without that, only settings are tested.
    """

    @pytest.fixture
    def write_sample(self, weight_format: ReadMethod) -> WriteSample:
        write: WriteSample | None = WRITE_SAMPLE.of(weight_format)
        if write is None:
            pytest.skip("the weight format has no write_sample(weights)")
        return write

    @pytest.fixture
    def sample(self, write_sample: WriteSample) -> QuantizedSample:
        """A quantized matrix, and its numbers."""
        return checks.make_sample(write_sample)

    def test_settings_are_accepted_or_refused(self, weight_format: ReadMethod) -> None:
        """Absent settings raise nothing but ConfigError."""
        checks.check_settings(weight_format, {})

    def test_absurd_settings_are_accepted_or_refused(
        self, weight_format: ReadMethod, sample: QuantizedSample
    ) -> None:
        """Settings with absurd values raise nothing but ConfigError."""
        checks.check_absurd_settings(weight_format, sample)

    def test_one_tensor_marks_a_matrix(
        self, weight_format: ReadMethod, sample: QuantizedSample
    ) -> None:
        """`markers` and `endings` describe the tensors of a matrix."""
        checks.check_method(weight_format, sample)

    def test_a_matrix_has_the_numbers_of_the_sample(
        self, weight_format: ReadMethod, sample: QuantizedSample
    ) -> None:
        """`read`, `restore` and `dequantize` keep the numbers, in few bytes."""
        checks.check_numbers(weight_format, sample)

    def test_parts_and_stacks_have_the_numbers_of_the_whole(
        self, weight_format: ReadMethod, sample: QuantizedSample
    ) -> None:
        """`narrow` along outputs and inputs, and `stack`, change no number."""
        checks.check_cuts(weight_format, sample)

    def test_equal_formats_are_equal(
        self, weight_format: ReadMethod, write_sample: WriteSample
    ) -> None:
        """A format is compared with `==`, and is a key of dictionaries."""
        checks.check_identity(weight_format, write_sample)

    def test_damaged_tensors_are_refused(
        self, weight_format: ReadMethod, sample: QuantizedSample
    ) -> None:
        """A tensor that is missing, cut, empty or of another type raises ConfigError."""
        checks.check_damage(weight_format, sample)

    def test_a_directory_has_the_matrix(
        self, weight_format: ReadMethod, sample: QuantizedSample, tmp_path: Path
    ) -> None:
        """A checkpoint with these tensors has the matrix under transformers' name."""
        checks.check_directory(weight_format, sample, tmp_path)
