"""Attention between all patches of an image.

Shape suffixes: h heads, p patches, d head size.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
import torch.nn.functional as F

from ..machine.torch_threads import count_torch_threads


def attend(q_hpd: torch.Tensor, k_hpd: torch.Tensor, v_hpd: torch.Tensor) -> torch.Tensor:
    """Return [h, p, d].

    Beside native kernels torch has one thread (see SingleTorchThread), and attention would take a
    third of the encoder's time. Then each thread of a pool computes some of the heads.
    """
    num_threads = min(count_torch_threads(), len(q_hpd))
    if q_hpd.device.type != "cpu" or torch.get_num_threads() > 1 or num_threads == 1:
        return _attend(q_hpd, k_hpd, v_hpd)
    parts = (one.tensor_split(num_threads) for one in (q_hpd, k_hpd, v_hpd))
    return torch.cat(list(_pool(num_threads).map(_attend, *parts)))


def _attend(q_hpd: torch.Tensor, k_hpd: torch.Tensor, v_hpd: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():  # each thread has a mode of its own
        return F.scaled_dot_product_attention(q_hpd[None], k_hpd[None], v_hpd[None])[0]


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="tokenmill-vision")
