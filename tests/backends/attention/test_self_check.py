"""The comparison with torch that decides whether `auto` may use a backend here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionBatch
from tokenmill.backends.attention.self_check import reasons_of_self_check
from tokenmill.backends.attention.torch.backend import TorchAttention

from .steps import SPEC


class Broken(TorchAttention):
    def forward(self, layer: int, *args: Any) -> None:
        raise NotImplementedError("no kernel for this GPU\nmore")


class SeesTooMuch(TorchAttention):
    """Each decode also sees the slot after its last token."""

    def build_metadata(self, batch: AttentionBatch) -> Any:
        longer = [n + 1 if i < batch.num_decodes else n for i, n in enumerate(batch.seq_lens_host)]
        lengths = torch.tensor(longer, dtype=torch.int32)
        return super().build_metadata(replace(batch, seq_lens=lengths, seq_lens_host=longer))


class WritesNaN(TorchAttention):
    def forward(self, layer: int, *args: Any) -> None:
        super().forward(layer, *args)
        args[-1][-1, 0, 0] = torch.nan


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sliding_window": 30},
        {"has_sinks": True},
        {"dtype": torch.bfloat16},
        {"kv_cache_dtype": torch.float8_e4m3fn},
    ],
    ids=str,
)
def test_a_right_backend_has_no_reasons(change: dict[str, Any]) -> None:
    class Other(TorchAttention):
        pass

    assert reasons_of_self_check(Other, replace(SPEC, **change)) == []


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (Broken, "it fails on this machine: NotImplementedError: no kernel for this GPU"),
        (SeesTooMuch, "on this machine its numbers differ from those of torch by "),
        (WritesNaN, "on this machine its numbers differ from those of torch by nan"),
    ],
)
def test_a_wrong_backend_is_found(backend: Any, reason: str) -> None:
    (found,) = reasons_of_self_check(backend, SPEC)
    assert found.startswith(reason)
