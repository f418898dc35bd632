"""torch's threads while native kernels compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tokenmill.backends.machine import torch_threads
from tokenmill.backends.machine.torch_threads import SingleTorchThread


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch has three threads, and engines that other tests keep open do not count."""
    monkeypatch.setattr(torch_threads, "_holders", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first_to_go", [0, 1])
def test_torch_gets_its_threads_back_when_the_last_engine_closes(first_to_go: int) -> None:
    both = [SingleTorchThread(), SingleTorchThread()]
    assert torch.get_num_threads() == 1
    both[first_to_go].release()
    assert torch.get_num_threads() == 1
    both[1 - first_to_go].release()
    assert torch.get_num_threads() == 3


def test_a_second_release_of_one_engine_takes_nothing_from_another() -> None:
    one, other = SingleTorchThread(), SingleTorchThread()
    one.release()
    one.release()
    assert torch.get_num_threads() == 1
    other.release()
    assert torch.get_num_threads() == 3
