"""Adds hooks of which the engines do not know to their metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

from ...contract.client import EngineClient
from ...contract.plugin_info import HookStats

FIELDS = ("calls", "seconds", "failures")


def with_hook_stats(metrics: bytes, stats: Iterable[HookStats], engine: EngineClient) -> bytes:
    """The metrics with samples of these hooks, in the families that the engines' hooks have.

    Samples of a family that an engine does not have, because its observer of metrics is not
    enabled, are left out. These samples have no label `engine`, so they are not mixed with the
    engines' own.
    """
    if not (found := tuple(stats)):
        return metrics
    quoted = partial(json.dumps, ensure_ascii=False)
    model_name = quoted(engine.model_name)
    for field in FIELDS:
        family = f"{engine.config.metrics_prefix}plugin_hook_{field}_total"
        head = f"# TYPE {family} counter\n".encode()
        samples = "".join(
            f"{family}{{model_name={model_name},plugin={quoted(one.plugin)},"
            f'hook="{one.hook}"}} {float(getattr(one, field))}\n'
            for one in found
        )
        metrics = metrics.replace(head, head + samples.encode(), 1)
    return metrics
