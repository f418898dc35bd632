"""Divides a computation among threads where torch itself has only one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from ..machine.torch_threads import count_torch_threads


def divided(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """Return `function(*tensors)`, which computes each index of the first dimension alone.

    Beside native kernels torch has one thread (see SingleTorchThread), and attention and
    activations would take half of the encoder's time. Then each thread of a pool computes a part.
    """
    num_threads = min(count_torch_threads(), len(tensors[0]))
    if tensors[0].device.type != "cpu" or torch.get_num_threads() > 1 or num_threads == 1:
        return function(*tensors)

    def compute(*parts: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():  # each thread has a mode of its own
            return function(*parts)

    parts = (one.tensor_split(num_threads) for one in tensors)
    return torch.cat(list(_pool(num_threads).map(compute, *parts)))


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="tokenmill-vision")
