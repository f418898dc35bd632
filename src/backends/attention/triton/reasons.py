"""Reasons why the Triton backend cannot serve a spec, or does not run on this machine."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import torch

from ...machine.device import compute_capability
from ..base import AttentionSpec
from ..gpu_reasons import reasons_of_capability, reasons_of_device, reasons_of_machine
from ..packages import Package, reason_against
from ..reasons import reasons_of_dtype, reasons_of_heads
from .tiles import MAX_GROUP_SIZE

TRITON = Package(module="triton", install="pip install triton")

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_HEAD_SIZE = 256


def reasons_of_spec(spec: AttentionSpec) -> list[str]:
    """Return every reason why the backend cannot serve the spec; empty when it can.

    This imports triton; a failed import is a reason.
    """
    return [
        *reasons_of_device(spec, compute_capability(spec.device)),
        *_reasons_of_shape(spec),
        *_reasons_of_package(),
    ]


def reasons_of_this_machine() -> list[str]:
    """Return what the backend lacks on this machine for any model, one line each."""
    capability, lacks = reasons_of_machine()
    return [*lacks, *reasons_of_capability(capability), *_reasons_of_package()]


def _reasons_of_package() -> list[str]:
    reason = reason_against(TRITON)
    return _reasons_of_compiler() if reason is None else [reason]


def _reasons_of_compiler() -> list[str]:
    """Return what is missing to compile a kernel's launcher, for which Triton writes C code."""
    reasons = []
    if not os.environ.get("CC") and not shutil.which("gcc") and not shutil.which("clang"):
        reasons.append("triton needs a C compiler: install gcc or clang, or set CC")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        reasons.append(f"triton needs Python's headers (Debian: python3-dev): there is no {header}")
    return reasons


def _reasons_of_shape(spec: AttentionSpec) -> list[str]:
    reasons = reasons_of_dtype(spec, _DTYPES) + reasons_of_heads(spec)
    if spec.num_heads // spec.num_kv_heads > MAX_GROUP_SIZE:
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
