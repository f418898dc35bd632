"""The suite for implementations of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ....core.members import WRITE_SAMPLE
from ..computing import LazyModule

if TYPE_CHECKING:
    from . import checks
    from .checks import ImplClass
else:
    checks = LazyModule(f"{__package__}.checks")


class ModelImplConformance:
    """The suite for an implementation of models.

    Subclass it as Test..., with a fixture `model_impl` that returns the implementation's class,
    and a fixture `model_path` that returns a small model which it can run: a directory with
    config.json and safetensors files. Without `model_path`, the implementation's classmethod
    `write_sample(folder)` writes one; without that, only the reasons are tested.
    """

    @pytest.fixture
    def model_path(self, model_impl: ImplClass, tmp_path: Path) -> Path:
        write = WRITE_SAMPLE.of(model_impl)
        if write is None:
            pytest.skip("the implementation has no write_sample(folder), and there is no model")
        write(tmp_path)
        return tmp_path

    @pytest.fixture
    def model(self, model_impl: ImplClass, model_path: Path) -> Any:
        """The loaded model."""
        return checks.load(model_impl, model_path)

    def test_other_architectures_are_refused(self, model_impl: ImplClass, tmp_path: Path) -> None:
        """`reasons_against` says in lines of text why an unknown model cannot run."""
        checks.check_reasons(model_impl, tmp_path)

    def test_every_layer_attends_once_and_sizes_are_as_configured(self, model: Any) -> None:
        """`forward`, `attend` and `compute_logits` have the shapes of the configuration."""
        checks.check_layers(model)

    def test_chunks_of_a_prompt_equal_the_whole(self, model: Any) -> None:
        """The model keeps no state: what `attend` returns is all that a token sees of others."""
        checks.check_chunks(model)

    def test_sequences_of_a_batch_do_not_change_each_other(self, model: Any) -> None:
        """Rows of a flat batch are independent, except through `attend`."""
        checks.check_batches(model)
