"""Which precision is chosen, and which are refused."""

from __future__ import annotations

import pytest
import torch

from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.machine.device import choose_device
from tokenmill.backends.running.precision import choose_dtype
from tokenmill.core.errors import ConfigError

from ..machine.test_device import pretend_cpu, pretend_gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (["avx2", "avx512_f"], torch.float32),
        (["avx512_f", "avx512_bf16"], torch.bfloat16),
        (["amx_tile", "amx_bf16"], torch.bfloat16),
        (["neon", "bf16", "i8mm"], torch.bfloat16),
        ([], torch.float32),
    ],
)
def test_auto_is_bfloat16_on_a_cpu_that_computes_it(
    monkeypatch: pytest.MonkeyPatch, features: list[str], expected: torch.dtype
) -> None:
    pretend_cpu(monkeypatch, *features)
    for published in (torch.float32, torch.bfloat16, torch.float16):
        assert choose_dtype("auto", published, CPU, TorchLinear) is expected


@pytest.mark.parametrize(
    ("capability", "published", "expected"),
    [
        ((7, 5), torch.bfloat16, torch.float32),
        ((8, 0), torch.bfloat16, torch.bfloat16),
        ((9, 0), torch.float32, torch.bfloat16),
        ((7, 5), torch.float16, torch.float16),
    ],
)
def test_auto_on_a_gpu_follows_its_generation_and_the_model(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    published: torch.dtype,
    expected: torch.dtype,
) -> None:
    pretend_gpu(monkeypatch, capability)
    assert choose_dtype("auto", published, CUDA, TorchLinear) is expected


def test_a_precision_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cpu(monkeypatch)
    assert choose_dtype("bfloat16", torch.float32, CPU, TorchLinear) is torch.bfloat16
    pretend_cpu(monkeypatch, "avx512_bf16")
    assert choose_dtype("float32", torch.bfloat16, CPU, TorchLinear) is torch.float32
    assert choose_dtype("float16", torch.bfloat16, CUDA, TorchLinear) is torch.float16


def test_float16_on_a_cpu_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="float16 needs a GPU: CPUs compute bfloat16 or float32"):
        choose_dtype("float16", torch.float16, CPU, TorchLinear)


def test_this_machine_s_choice_works() -> None:
    device = choose_device("auto")
    dtype = choose_dtype("auto", torch.float32, device, TorchLinear)
    x = torch.ones(4, 4, device=device, dtype=dtype)
    assert float((x @ x).sum()) == 64
