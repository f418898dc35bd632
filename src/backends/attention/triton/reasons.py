"""Why the Triton backend cannot serve a specification, or this machine: all reasons at once."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import torch

from ...machine.device import compute_capability
from ..base import AttentionSpec
from ..gpu_reasons import reasons_of_machine
from ..packages import Package
from .tiles import MAX_GROUP_SIZE

TRITON = Package(module="triton", install="pip install triton")

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_HEAD_SIZE = 256
_OLDEST = (8, 0)
"""Compute capability. For older GPUs, which lack bfloat16 and asynchronous copies, Triton keeps the
tiles in slow local memory."""


def reasons_of_spec(spec: AttentionSpec) -> list[str]:
    """Every reason why it cannot serve the spec; empty when it can. Imports triton, guarded."""
    capability = compute_capability(spec.device)
    device = [f"it runs on NVIDIA GPUs, not on {spec.device.type}"] if capability is None else []
    return [
        *device,
        *_reasons_of_capability(capability),
        *_reasons_of_shape(spec),
        *_reasons_of_package(),
    ]


def reasons_of_this_machine() -> list[str]:
    """What is missing here, whatever the model; one line each."""
    capability, lacks = reasons_of_machine()
    return [*lacks, *_reasons_of_capability(capability), *_reasons_of_package()]


def _reasons_of_package() -> list[str]:
    reason = TRITON.reason()
    return _reasons_of_compiler() if reason is None else [reason]


def _reasons_of_compiler() -> list[str]:
    """Triton compiles the code that launches a kernel with a C compiler, where it is launched."""
    reasons = []
    if not os.environ.get("CC") and not shutil.which("gcc") and not shutil.which("clang"):
        reasons.append("triton needs a C compiler: install gcc or clang, or set CC")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        reasons.append(f"triton needs Python's headers (Debian: python3-dev): there is no {header}")
    return reasons


def _reasons_of_capability(capability: tuple[int, int] | None) -> list[str]:
    if capability is None or capability >= _OLDEST:
        return []
    needed, present = (".".join(map(str, version)) for version in (_OLDEST, capability))
    return [f"it needs compute capability {needed}, and this GPU has {present}"]


def _reasons_of_shape(spec: AttentionSpec) -> list[str]:
    reasons = []
    if spec.dtype not in _DTYPES:
        reasons.append(f"it computes in float32, bfloat16 or float16, not in {spec.dtype}")
    if spec.num_heads % spec.num_kv_heads:
        reasons.append(f"{spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads")
    elif spec.num_heads // spec.num_kv_heads > MAX_GROUP_SIZE:
        reasons.append(
            f"at most {MAX_GROUP_SIZE} query heads may share a KV head, not "
            f"{spec.num_heads // spec.num_kv_heads}"
        )
    if spec.head_size % 16 or spec.head_size > _MAX_HEAD_SIZE:
        reasons.append(
            f"heads must have a multiple of 16 elements, at most {_MAX_HEAD_SIZE}, "
            f"not {spec.head_size}"
        )
    return reasons
