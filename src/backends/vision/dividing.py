"""Divides a computation among threads where torch itself has only one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from ..machine.torch_threads import count_torch_threads

PARTS_PER_THREAD = 4


def divided(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """Return `function(*tensors)`, computed in parts by several threads if torch has one thread.

    `function` must compute each index of the first dimension independently, and keep the shape of
    the first tensor. While native kernels are in use, torch has one thread (see SingleTorchThread),
    and attention and activations would take half of the encoder's time. Parts are small, so that
    only a fraction of the result is in memory twice.
    """
    num_threads = min(count_torch_threads(), len(tensors[0]))
    if tensors[0].device.type != "cpu" or torch.get_num_threads() > 1 or num_threads == 1:
        return function(*tensors)
    found = torch.empty(tensors[0].shape, dtype=tensors[0].dtype)

    def compute(target: torch.Tensor, *parts: torch.Tensor) -> None:
        with torch.inference_mode():  # each thread has a mode of its own
            target.copy_(function(*parts))

    num_parts = min(PARTS_PER_THREAD * num_threads, len(found))
    parts = (one.tensor_split(num_parts) for one in (found, *tensors))
    list(_pool(num_threads).map(compute, *parts))
    return found


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="tokenmill-vision")
