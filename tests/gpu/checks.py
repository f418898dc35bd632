"""What must hold for a step of any attention backend, on any device; the largest error is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tokenmill.testing.conformance.attention.reference import reference_attention
from tokenmill.testing.conformance.attention.steps import Step

from .cases import Case


def check_step(backend: Any, case: Case) -> float:
    """The output is that of float64, within the precision's bound. The largest difference."""
    step, made = case.step(), backend(case.spec)
    out_thd = step.run(made, step.new_cache(made))
    step.check(out_thd)
    return _largest_error(step, out_thd)


def check_poisoned_step(backend: Any, case: Case) -> float:
    """As `check_step`, with NaN wherever no token of a sequence lies: in unused blocks, and in the
    unused slots of used ones."""
    step, made = case.step(), backend(case.spec)
    cache = _poisoned_cache(step, made)
    out_thd = step.run(made, cache)
    step.check(out_thd)
    return _largest_error(step, out_thd)


def check_writes(backend: Any, case: Case) -> None:
    """The step's tokens are written into the cache, and nothing else is."""
    step, made = case.step(), backend(case.spec)
    cache = _poisoned_cache(step, made)
    before = cache.clone()
    step.run(made, cache)
    is_changed = (cache != before) & ~(cache.isnan() & before.isnan())
    of_token = 2 * case.spec.num_kv_heads * case.spec.head_size
    expected = sum(span.num_queries for span in step.spans) * of_token
    assert int(is_changed.sum()) == expected


def check_waits(backend: Any, case: Case) -> None:
    """A step is queued without a wait for the GPU: torch raises where it would wait."""
    step, made = case.step(), backend(case.spec)
    cache = step.new_cache(made)
    step.run(made, cache)  # compiles kernels, loads libraries
    batch, inputs = step.batch, step.inputs()
    out_thd = torch.empty_like(inputs[0])
    with _waiting_forbidden(case.spec.device):
        made.forward(0, *inputs, cache, made.build_metadata(batch), out_thd)
    step.check(out_thd)


@contextmanager
def _waiting_forbidden(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _poisoned_cache(step: Step, made: Any) -> torch.Tensor:
    shape = made.kv_cache_shape(step.num_blocks)
    cache = torch.full(shape, torch.nan, dtype=step.spec.dtype, device=step.spec.device)
    step.write_known(made, cache)
    return cache


def _largest_error(step: Step, out_thd: torch.Tensor) -> float:
    expected = [
        reference_attention(step.spec, q, k, v)
        for q, k, v in zip(step.q, step.k, step.v, strict=True)
    ]
    return float((out_thd.double() - torch.cat(expected)).abs().max())
