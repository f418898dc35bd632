"""Which device is chosen, and which are refused."""

from __future__ import annotations

import pytest
import torch

from tokenmill.backends.machine.device import choose_device
from tokenmill.core.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def pretend_cpu(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    found = {"architecture": "of a test", "bf16": False, **dict.fromkeys(features, True)}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, (9, 0))
    assert choose_device("auto") == CUDA
    assert choose_device("cpu") == CPU
    pretend_gpu(monkeypatch, None)
    assert choose_device("auto") == CPU


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(monkeypatch, None)
    with pytest.raises(ConfigError, match="--device cuda: torch finds no GPU here"):
        choose_device("cuda")


@pytest.mark.parametrize("name", ["tpu", "meta", "cpu:x", ""])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--device must be auto, cpu or cuda, got"):
        choose_device(name)
