"""Samples with torch or with the native library, whichever the test that runs is for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.cpu.sampling import NativeSampling
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.backends.sampling.batch import SamplingBatch
from tokenmill.backends.sampling.ops import SamplingOps, TorchSampling
from tokenmill.backends.sampling.sampler import Sampled, sample

OPS = ("torch", "native")

_in_use: list[SamplingOps] = [TorchSampling()]


def make_ops(name: str) -> SamplingOps:
    """By name; skips the test where there is no compiler for native ones."""
    if name == "torch":
        return TorchSampling()
    try:
        return NativeSampling(load_library())
    except BuildError as error:
        if shutil.which("g++") or shutil.which("clang++"):
            raise
        pytest.skip(str(error))


@contextmanager
def sampling_with(ops: SamplingOps) -> Iterator[None]:
    """Until the end `sample_batch` samples with these."""
    _in_use.append(ops)
    try:
        yield
    finally:
        _in_use.pop()


def sample_batch(
    logits_rv: torch.Tensor, batch: SamplingBatch, positions_r: torch.Tensor
) -> Sampled:
    return sample(logits_rv, batch, positions_r, _in_use[-1])
