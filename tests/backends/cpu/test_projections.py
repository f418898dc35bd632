"""Who computes the products on which CPU, and where quantized weights stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.cpu import projections
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.native.architectures import PORTABLE, architecture_of
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.projections import CPULinear, NativeLinear
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.linear.base import ACTIVATIONS, LinearSpec
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.backends.running.parts.precision import choose_dtype, keeps_float16
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.formats.gguf_blocks import FLOAT16, GGUFBlocks, gguf_weights
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ..machine.test_device import pretend_cpu
from ..weights.gguf_writing import write_gguf
from .conftest import pretend_best
from .test_decoder_call import PLAIN
from .weights import random_blocks, round_to_int8

CPU = torch.device("cpu")
BF16_ROUNDING = 2.0**-8
SUITED = set(architecture_of().sets) - {PORTABLE}
"""Instruction sets whose kernels are faster than torch, so that quantized weights stay packed."""


@pytest.fixture(autouse=True)
def no_instruction_set_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENMILL_CPU_ISA", raising=False)


@pytest.fixture
def without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cpu(monkeypatch, "avx2")


@pytest.fixture
def with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cpu(monkeypatch, "neon", "bf16")


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_best("portable", monkeypatch)


def serves() -> bool:
    return not CPULinear.reasons_against(LinearSpec(dtype=torch.bfloat16, device=CPU))


def chosen_dtype(name: str, published: torch.dtype | Kind) -> torch.dtype:
    format = GGUFBlocks(published) if isinstance(published, Kind) else published
    return choose_dtype(name, format, CPU, CPULinear)


@pytest.mark.usefixtures("without_bfloat16")
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0])
def test_auto_keeps_quantized_weights_on_a_cpu_with_avx2_and_no_bfloat16(
    kind: Kind, instruction_set: str
) -> None:
    expected = torch.bfloat16 if instruction_set in SUITED else torch.float32
    assert chosen_dtype("auto", kind) is expected
    assert chosen_dtype("float32", kind) is torch.float32
    assert chosen_dtype("auto", torch.bfloat16) is torch.float32


@pytest.mark.usefixtures("without_bfloat16")
def test_float16_weights_are_kept_where_the_kernels_are_fast(instruction_set: str) -> None:
    is_kept = instruction_set in SUITED
    assert keeps_float16(CPU, CPULinear) is is_kept
    for name in ("float16", "auto") if is_kept else ("auto",):
        assert chosen_dtype(name, Kind.F16) is torch.float32
    assert chosen_dtype("bfloat16", torch.float16) is torch.bfloat16
    if not is_kept:
        with pytest.raises(ConfigError, match="'cpu' does not keep them here: use --dtype auto"):
            chosen_dtype("float16", Kind.F16)
    with pytest.raises(ConfigError, match=r"but its weights are packed in Q4_0: use --dtype auto"):
        chosen_dtype("float16", Kind.Q4_0)


@pytest.mark.usefixtures("without_bfloat16", "library")
def test_a_kind_that_is_not_computed_with_is_no_reason_for_bfloat16() -> None:
    assert chosen_dtype("auto", Kind.IQ3_S) is torch.float32


@pytest.mark.usefixtures("without_bfloat16")
def test_without_a_compiler_quantized_weights_become_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> Library:
        raise BuildError("no C++ compiler was found")

    monkeypatch.setattr(projections, "load_library", fail)
    assert chosen_dtype("auto", Kind.Q4_1) is torch.float32


@pytest.mark.usefixtures("without_bfloat16", "portable")
def test_portable_kernels_that_are_asked_for_by_name_keep_quantized_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chosen_dtype("auto", Kind.Q4_1) is torch.float32
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "portable")
    assert chosen_dtype("auto", Kind.Q4_1) is torch.bfloat16


@pytest.mark.usefixtures("with_bfloat16")
def test_torch_computes_on_a_cpu_with_bfloat16_that_has_portable_kernels_only(
    instruction_set: str,
) -> None:
    assert serves() is (instruction_set != "portable")


@pytest.mark.usefixtures("with_bfloat16", "portable")
def test_portable_kernels_compute_if_they_are_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "portable")
    assert serves()


@pytest.mark.usefixtures("without_bfloat16", "portable")
def test_portable_kernels_compute_where_torch_would_emulate_bfloat16() -> None:
    assert serves()


@pytest.mark.usefixtures("without_bfloat16")
def test_a_quantized_file_is_served_at_its_own_bits(instruction_set: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", random_checkpoint(PLAIN, 4), kind=Kind.Q4_1)
    executor = ModelExecutor.from_checkpoint(
        open_checkpoint(tmp_path / "model.gguf"),
        EngineConfig(device="cpu", num_gpu_blocks_override=4),
        backends_with(CPUAttention),
        no_progress,
    )
    executor.close()
    expected = "bfloat16" if instruction_set in SUITED else "float32"
    assert executor.info.dtype == expected


def _random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).bfloat16() * 0.1


@pytest.mark.usefixtures("library")
def test_segments_of_different_formats_are_one_product_of_packed_weights() -> None:
    """As a Q4_K_M file mixes them. Packed segments see int8 inputs, the others bfloat16."""
    linear = CPULinear(LinearSpec(dtype=torch.bfloat16, device=CPU))
    parts = [random_blocks(kind, out, 256) for kind, out in ((Kind.Q4_K, 64), (Kind.Q6_K, 32))]
    dense, bias, x = _random(32, 256), _random(192), _random(5, 256)
    product = linear.linear([parts[0], parts[0], parts[1], dense], bias)
    assert isinstance(product, NativeLinear)
    sizes = 128 * 148 + 32 * 210 + 32 * 512
    assert product.num_bytes == sizes + 4 * 192 and product.num_parameters == 192 * 257
    packed = torch.cat([one.dequantize() for one in (parts[0], parts[0], parts[1])]).double()
    exact = torch.cat([round_to_int8(x) @ packed.T, x.double() @ dense.double().T], dim=1) + bias
    assert ((product(x) - exact).abs() <= exact.abs() * BF16_ROUNDING + 1e-4).all()


@pytest.mark.usefixtures("instruction_set")
def test_float16_products_are_exact_and_may_have_segments_in_float32() -> None:
    spec = LinearSpec(dtype=torch.float32, device=CPU, format=FLOAT16)
    linear = CPULinear(spec)
    values, x = _random(48, 96).half(), torch.randn(7, 96)
    half = gguf_weights(Kind.F16, values.view(torch.uint8))
    both = linear.linear([half, values.float()], None)(x)
    exact = x @ values.float().T
    for found in (both[:, :48], both[:, 48:], linear.head(half)(x)):
        assert found.dtype is torch.float32
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
    gated = linear.gate_up(half, half, None, "silu")(x)
    expected = torch.nn.functional.silu(exact) * exact
    torch.testing.assert_close(gated, expected, rtol=1e-5, atol=1e-6)
    assert CPULinear.reasons_against(LinearSpec(dtype=torch.float32, device=CPU))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_activations_are_those_of_torch_for_gates_of_any_size(activation: str) -> None:
    gates = torch.cat(
        (torch.linspace(-12, 12, 500), torch.tensor([0.0, -1e4, 1e4, 1e30]))
    ).bfloat16()
    x = torch.zeros(len(gates), 32, dtype=torch.bfloat16)
    x[:, 0], x[:, 1] = gates, 1
    gate, up = torch.zeros(2, 16, 32)
    gate[:, 0] = up[:, 1] = 1
    product = CPULinear(LinearSpec(dtype=torch.bfloat16, device=CPU)).gate_up(
        gate, up, None, activation
    )
    assert isinstance(product, NativeLinear)
    expected = ACTIVATIONS[activation](gates.double()).unsqueeze(1).expand(-1, 16)
    torch.testing.assert_close(product(x).double(), expected, rtol=BF16_ROUNDING, atol=1e-6)
    x[:, 0] = torch.nan
    assert product(x).isnan().all()


@pytest.mark.usefixtures("library")
def test_gate_and_up_of_different_formats_keep_both() -> None:
    linear = CPULinear(LinearSpec(dtype=torch.bfloat16, device=CPU))
    gate, up = (random_blocks(kind, 64, 256) for kind in (Kind.Q4_K, Kind.Q8_0))
    product = linear.gate_up(gate, up, None, "silu")
    assert product.num_bytes == 64 * 148 + 64 * 8 * 34
    x = _random(5, 256)
    gates, ups = (round_to_int8(x) @ one.dequantize().double().T for one in (gate, up))
    exact = torch.nn.functional.silu(gates) * ups
    # The gate is rounded before its activation, whose slope is at most 1.1; then up, the
    # activation and the product are rounded.
    bound = 1.2 * BF16_ROUNDING * (gates * ups).abs() + 3.1 * BF16_ROUNDING * exact.abs() + 1e-4
    assert ((product(x) - exact).abs() <= bound).all()
