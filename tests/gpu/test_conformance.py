"""The conformance suite for attention backends, on the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.testing.conformance.attention.suite import AttentionConformance

from .contenders import DEVICE, load, skip_without_device

skip_without_device()


class TestConformance(AttentionConformance):
    """Each backend, with whatever specification it takes first."""

    @pytest.fixture
    def attention_backend(self, backend_name: str) -> Any:
        return load(backend_name)

    @pytest.fixture
    def device(self) -> str:
        return str(DEVICE)
