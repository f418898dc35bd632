"""Threads compute parts of a tensor. Together, the parts are the whole result."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tokenmill.backends.machine.torch_threads import SingleTorchThread
from tokenmill.backends.vision.dividing import divided


def test_the_parts_are_the_whole_result_for_any_number_of_rows() -> None:
    single = SingleTorchThread()
    try:
        for num_rows in (1, 2, 3, 7, 8, 9, 100):
            x, y = torch.randn(2, num_rows, 16)
            assert torch.equal(divided(torch.add, x, y), x + y)
            torch.testing.assert_close(divided(F.gelu, x), F.gelu(x), rtol=0, atol=1e-6)
    finally:
        single.release()
