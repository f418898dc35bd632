"""The conformance kit on the CUDA backend, with its kernels in the emulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.cuda import attention as cuda_paged
from tokenmill.backends.cuda.attention import CudaPagedAttention
from tokenmill.testing import AttentionConformance

from .emulation import EmulatedOperators

pytestmark = pytest.mark.soak


class Emulated(CudaPagedAttention):
    """On a CPU, where it is slow: one head size, two block sizes."""

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        reasons = cuda_paged._reasons_of_shape(replace(spec, device=torch.device("cuda")))
        if spec.head_size != 64 or spec.block_size not in (5, 16):
            reasons.append("it would take long")
        return [*reasons, *([] if spec.device.type == "cpu" else ["it is emulated"])]


class TestEmulated(AttentionConformance):
    @pytest.fixture
    def attention_backend(self, operators: EmulatedOperators) -> Any:
        return Emulated
