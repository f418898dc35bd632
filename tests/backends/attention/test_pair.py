"""Prompts and chunks by one backend, decodes by another, over one cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tokenmill.backends.attention.base import AttentionCapabilities
from tokenmill.backends.attention.flash.backend import FlashAttention
from tokenmill.backends.attention.kv_layout import KVLayout
from tokenmill.backends.attention.pair import BackendPair
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.attention.xformers.backend import XformersAttention
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.core.errors import ConfigError
from tokenmill.testing.conformance.attention.checks import check_graphs

from .package_fakes import (
    Calls,
    forgotten,
    install_flash_attention_2,
    install_flash_attention_3,
)
from .steps import BATCHES, IMAGES, SPEC, VARIANTS, Step
from .xformers.fakes import install_xformers


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    monkeypatch.setattr(
        "tokenmill.backends.attention.flash.backend.compute_capability", lambda device: (9, 0)
    )
    with forgotten("flash_attn", "flash_attn_interface", "vllm", "xformers"):
        yield install_flash_attention_2(monkeypatch)


class Lying(TorchAttention):
    """Its cache is not what it says."""

    name = "lying"
    capabilities = AttentionCapabilities(kv_cache_layouts=(KVLayout.HEADS,))


class Heads(FlashAttention):
    """A backend that cannot do with another layout."""

    name = "heads"
    capabilities = AttentionCapabilities(kv_cache_layouts=(KVLayout.HEADS,))


def paired(prefill: Any, decode: Any) -> Any:
    return BackendPair(prefill, decode)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(flash: Calls, kind: str, variant: str) -> None:
    spec = replace(SPEC, **VARIANTS[variant])
    step = Step(paired(FlashAttention, TorchAttention), spec, *BATCHES[kind])
    flash.names.clear()
    step.check()
    assert bool(flash.names) == (kind != "decodes")


@pytest.mark.parametrize("kind", BATCHES)
def test_the_one_for_prompts_lets_tokens_of_an_image_see_each_other(
    flash: Calls, kind: str
) -> None:
    spec = replace(SPEC, **IMAGES["window and images"])
    Step(paired(TorchAttention, TorchAttention), spec, *BATCHES[kind]).check()
    refused = paired(FlashAttention, TorchAttention).reasons_against(spec)
    assert any("cannot see each other" in reason for reason in refused)


@pytest.mark.parametrize(
    "pair", [(FlashAttention, Heads), (Heads, FlashAttention), (Heads, XformersAttention)]
)
def test_the_one_that_can_takes_the_layout_of_the_other(
    flash: Calls, monkeypatch: pytest.MonkeyPatch, pair: tuple[Any, Any]
) -> None:
    install_flash_attention_3(monkeypatch)
    install_xformers(monkeypatch)
    step = Step(paired(*pair), SPEC, *BATCHES["mixed"])
    assert step.backend.kv_cache_shape(7) == (7, 2, 2, 8, 16)
    step.check()


def test_a_backend_that_only_prefills_may_take_blocks_that_it_could_not_decode(
    flash: Calls,
) -> None:
    spec = replace(SPEC, dtype=torch.bfloat16)
    assert "set --block-size 256" in " ".join(FlashAttention.reasons_against(spec))
    assert paired(FlashAttention, TorchAttention).reasons_against(spec) == []


def test_blocks_are_copied_once() -> None:
    backend = paired(TorchAttention, TorchAttention)(SPEC)
    cache = torch.arange(4.0).view(1, 4, 1, 1, 1).expand(backend.kv_cache_shape(4)).clone()
    backend.copy_blocks(cache, cache, [(3, 0), (0, 1)])
    assert [cache[0, block].mean() for block in range(4)] == [3, 3, 2, 3]


def test_graphs_are_those_of_the_one_that_decodes(
    flash: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xformers computes blocks of 8 slots over copied keys, which cannot be captured."""
    install_xformers(monkeypatch)
    assert paired(XformersAttention, TorchAttention)(SPEC).graphs == "padded decodes"
    assert paired(TorchAttention, XformersAttention)(SPEC).graphs == "never"
    check_graphs(paired(FlashAttention, TorchAttention), SPEC)


def test_all_reasons_of_both_are_told() -> None:
    spec = replace(SPEC, dtype=torch.float64)
    pair = paired(TorchAttention, Lying)
    assert pair.name == "torch,lying"
    assert pair.reasons_against(spec) == [
        "torch and lying have no layout of the KV cache in common",
        "torch: it computes in float32, bfloat16 or float16, not in float64",
        "lying: it computes in float32, bfloat16 or float16, not in float64",
    ]


def test_a_backend_that_names_no_layout_cannot_be_paired() -> None:
    assert paired(CPUAttention, TorchAttention).reasons_against(SPEC) == [
        "cpu does not declare the layouts of the KV cache that it supports"
    ]


def test_layouts_that_differ_all_the_same_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with forgotten("xformers"):
        install_xformers(monkeypatch)
        with pytest.raises(ConfigError, match="cannot share a KV cache: the shape of one block is"):
            paired(XformersAttention, Lying)(SPEC)
