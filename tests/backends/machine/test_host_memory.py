"""Main memory from the system: zero, aligned, committed when written, alive with its tensors."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import psutil
import pytest
import torch

from tokenmill.backends.machine.host_memory import HostMemory
from tokenmill.core.errors import ConfigError

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


def test_tensors_are_zero_and_lie_one_after_the_other() -> None:
    memory = HostMemory(1000)
    first = memory.tensor(0, (2, 100), torch.float32)
    second = memory.tensor(800, (100,), torch.bfloat16)
    assert not first.any() and not second.any()
    assert first.data_ptr() == memory.address and second.data_ptr() == memory.address + 800
    second.fill_(1)
    assert not first.any()


def test_it_begins_on_a_huge_page_and_holds_whole_ones() -> None:
    memory = HostMemory((2 << 20) + 1)
    assert memory.address % (2 << 20) == 0
    assert memory.num_bytes == 4 << 20


def test_a_tensor_keeps_its_bytes() -> None:
    tensor = HostMemory(1 << 20).tensor(0, (1 << 18,), torch.int32)
    gc.collect()
    tensor.fill_(7)
    assert tensor.sum() == 7 << 18


def test_a_tensor_beyond_the_end_is_not_to_be_had() -> None:
    with pytest.raises(AssertionError):
        HostMemory(2 << 20).tensor(2, (1 << 20,), torch.bfloat16)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count differently")
def test_memory_is_taken_only_as_it_is_written() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    memory = HostMemory(1 << 30)
    tensor = memory.tensor(0, (1 << 30,), torch.uint8)
    assert process.memory_info().rss - before < 64 << 20
    tensor[: 256 << 20].fill_(1)
    assert process.memory_info().rss - before > 128 << 20


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this system has no huge pages on demand")
def test_huge_pages_are_asked_for() -> None:
    memory = HostMemory(8 << 20)
    flags = _flags_of_mapping(memory.address)
    assert "hg" in flags
    assert "sh" not in flags, "shared memory gets huge pages only where they are switched on"


def _flags_of_mapping(address: int) -> list[str]:
    """VmFlags of /proc/self/smaps."""
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if not head.endswith(":"):
            start, end = (int(part, 16) for part in head.split("-"))
            is_it = start <= address < end
        elif is_it and head == "VmFlags:":
            return line.split()[1:]
    raise AssertionError("the mapping is missing")


def test_memory_that_the_system_refuses_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"GiB of memory cannot be reserved: .*kv-cache-memory"):
        HostMemory(1 << 60)
