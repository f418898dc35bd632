"""The conformance kit, and the reasons of the backend."""

from dataclasses import replace

import pytest
import torch
from tokenmill_sdpa_attention.backend import SdpaAttention

from tokenmill.compute import AttentionSpec
from tokenmill.testing import AttentionConformance, PackageConformance

SPEC = AttentionSpec(
    num_heads=8,
    num_kv_heads=2,
    head_size=64,
    block_size=16,
    dtype=torch.float32,
    device=torch.device("cpu"),
    scale=0.125,
)


class TestSdpaAttention(AttentionConformance):
    @pytest.fixture
    def attention_backend(self) -> type[SdpaAttention]:
        return SdpaAttention


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "sdpa"


def test_all_reasons_are_reported_at_once() -> None:
    odd = replace(SPEC, num_kv_heads=3, dtype=torch.float64, logits_soft_cap=30.0)
    assert len(SdpaAttention.reasons_against(odd)) == 3
