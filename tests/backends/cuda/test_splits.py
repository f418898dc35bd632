"""The division of contexts over a GPU."""

from __future__ import annotations

import pytest
import torch

from tokenmill.backends.cuda.splits import (
    allocate_splits,
    choose_split_size,
    count_splits,
    most_splits,
    splits_to_capture,
)

H200 = 132  # processors


@pytest.mark.parametrize(
    ("lengths", "splits"),
    [
        ([8192] * 256, 1),  # sequences enough
        ([1024] * 32, 2),
        ([32768] * 1, 47),  # 8 KV heads fill 3 * 132 places
        ([200] * 1, 1),  # too short to be worth it
        ([32768] + [1024] * 255, 6),  # only the long one is split
        ([], 1),
    ],
)
def test_splits_about_fill_the_device_once(lengths: list[int], splits: int) -> None:
    size = choose_split_size(lengths, 8, H200, max_splits=1000)
    assert count_splits(lengths, size) == splits
    assert size >= 256 and size % 64 == 0


def test_there_are_never_more_splits_than_memory_for_them() -> None:
    most = most_splits(1000, 64, 128)
    assert most * 1000 * 64 * 130 * 4 <= 64 << 20 or most == 1
    assert count_splits([100_000, 10], choose_split_size([100_000, 10], 8, H200, 3)) <= 3
    assert most_splits(10_000, 128, 256) == 1


def test_a_graph_has_splits_to_spare() -> None:
    assert splits_to_capture(1, 8, H200) == 99
    assert splits_to_capture(512, 8, H200) == 4


def test_memory_is_laid_out_as_the_kernels_read_it() -> None:
    splits = allocate_splits(3, 6, 64, 5, 256, torch.device("cpu"))
    assert splits.size.tolist() == [256] and splits.size.dtype is torch.int32
    assert splits.partial_sums.shape == (3, 6, 5, 64)
    assert splits.partial_stats.shape == (3, 6, 5, 2)
