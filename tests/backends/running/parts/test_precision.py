"""Which precision is chosen, and which are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.machine.device import choose_device
from tokenmill.backends.running.parts.precision import (
    KEPT_PRICE,
    PRICES,
    choose_dtype,
    log_rounding,
)
from tokenmill.backends.weights.formats.gguf_blocks import FLOAT16, GGUFBlocks
from tokenmill.core.errors import ConfigError

from ...machine.test_device import pretend_cpu, pretend_gpu

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
    refused: list[tuple[torch.dtype | GGUFBlocks, str]] = [
        (torch.float16, "this model implementation computes with weights of one type"),
        (FLOAT16, "linear backend 'torch' does not keep them here"),
    ]
    for published, reason in refused:
        with pytest.raises(ConfigError, match=f"but {reason}: use --dtype auto, bfloat16 or flo"):
            choose_dtype("float16", published, CPU, TorchLinear)


@pytest.mark.parametrize(
    ("stored", "dtype", "format", "keeps", "expected"),
    [
        (torch.float32, torch.bfloat16, None, True, ("bfloat16", "0.022", ["float16", "float32"])),
        (torch.float32, torch.bfloat16, None, False, ("bfloat16", "0.022", ["float32"])),
        (torch.float32, torch.float32, FLOAT16, True, ("float16", "0.0013", ["float32"])),
        (torch.float16, torch.bfloat16, None, True, ("bfloat16", "0.022", ["float16", "float32"])),
        (torch.float16, torch.float32, FLOAT16, True, None),
        (torch.float32, torch.float32, None, True, None),
        (torch.bfloat16, torch.bfloat16, None, True, None),
    ],
)
def test_rounded_weights_are_logged_with_their_price(
    caplog: pytest.LogCaptureFixture,
    stored: torch.dtype,
    dtype: torch.dtype,
    format: GGUFBlocks | None,
    keeps: bool,
    expected: tuple[str, str, list[str]] | None,
) -> None:
    with caplog.at_level("INFO"):
        log_rounding(stored, LinearSpec(dtype=dtype, device=CPU, format=format), keeps)
    events = [vars(one) for one in caplog.records if one.msg == "weights_rounded"]
    found = [
        (
            one["kept_as"],
            one["mean_difference_of_logprobs"].removeprefix("about "),
            re.findall(r"--dtype (\w+):", one["more_exact"]),
        )
        for one in events
    ]
    assert found == ([] if expected is None else [expected])


def test_prices_are_those_that_the_benchmark_measured() -> None:
    path = Path(__file__).parents[4] / "benchmarks" / "results" / "precisions.json"
    files = json.loads(path.read_text())["files"]
    assert {name: one["mean_difference"] for name, one in files["float32"].items()} == {
        **PRICES,
        "auto": PRICES["bfloat16"],
    }
    assert files["float16"]["float16"]["mean_difference"] == KEPT_PRICE
    assert files["float16"]["auto"]["mean_difference"] == KEPT_PRICE


def test_this_machine_s_choice_works() -> None:
    device = choose_device("auto")
    dtype = choose_dtype("auto", torch.float32, device, TorchLinear)
    x = torch.ones(4, 4, device=device, dtype=dtype)
    assert float((x @ x).sum()) == 64
