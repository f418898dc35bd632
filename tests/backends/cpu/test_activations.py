"""The option `activations` of the CPU linear backend: inputs in int8, or as they are."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.choice import choose_linear_backend
from tokenmill.backends.weights.formats.quantizing import quantize
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import PluginError
from tokenmill.core.host.plugin_host import PluginHost

from ...core.plugin_packages import Packages
from ..tiny import CPU

SPEC = LinearSpec(dtype=torch.bfloat16, device=CPU)


def error_of(packages: Packages, activations: str) -> float:
    """The error of a product in float32, relative to its size."""
    packages.write_settings(f"[linear_backend]\nuse = 'cpu'\nactivations = '{activations}'\n")
    backend = choose_linear_backend(PluginHost.load(EngineConfig()))(SPEC)
    generator = torch.Generator().manual_seed(1)
    weights = quantize(torch.randn(64, 512, generator=generator), Kind.Q8_0)
    x = torch.randn(5, 512, generator=generator).bfloat16()
    exact = x.double() @ weights.dequantize().double().T
    return float((backend.linear([weights], None)(x) - exact).norm() / exact.norm())


@pytest.mark.usefixtures("library")
def test_int8_rounds_inputs_and_bfloat16_does_not(packages: Packages) -> None:
    rounded, exact = error_of(packages, "int8"), error_of(packages, "bfloat16")
    assert exact < 2.0**-8  # the result is bfloat16
    assert 1.5 * exact < rounded < 0.02


def test_other_values_are_refused(packages: Packages) -> None:
    with pytest.raises(PluginError, match="activations must be one of int8, bfloat16"):
        error_of(packages, "int4")
