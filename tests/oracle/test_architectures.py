"""Every native architecture serves the tokens of transformers, from both kinds of files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from tokenmill.backends.weights.checkpoint import open_checkpoint

from . import toy
from .architectures import MODELS, write
from .comparison import find_near_ties
from .reference import ReferenceCase, continue_greedily, gap
from .settings import Setting, alternating_product
from .speculating import speculate
from .test_toy_product import CHUNKS, WHOLE

SETTINGS = (
    Setting(scheduler="chunked", block_size=8, is_starved=True, max_num_batched_tokens=CHUNKS),
    Setting(scheduler="prefill-first", preemption_mode="swap", is_starved=True),
)
"""The first for directories and the second for GGUF files: chunks, preemption and prefix hits."""


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, paths = write(name, tmp_path)
    prompts = toy.make_prompts()[4::2]
    cases = make_cases(model, prompts, num_tokens=16)
    assert len({case.token_ids for case in cases}) == len(cases)
    for path, setting in zip(paths, SETTINGS, strict=False):
        checkpoint = open_checkpoint(path)
        served = toy.serve(setting, cases, checkpoint, **speculate("ngram", 3))
        find_near_ties(partial(gap, model), cases, served.token_ids)
        # With windows, all requests may fit into the cache.
        has_windows = any(kind.sliding_window for kind in checkpoint.config.layer_kinds)
        assert served.num_preempted > 0 or has_windows
        assert served.num_hit_tokens > 0 or has_windows
        assert served.num_draft_tokens > 0


def test_experts_of_gpt_oss_are_read_in_mxfp4(tmp_path: Path) -> None:
    """As the publisher writes them; the reference has the same numbers in float32."""
    model = MODELS["gpt-oss"].make()
    model.load_state_dict(save_in_mxfp4(model, tmp_path), strict=False)
    cases = make_cases(model, toy.make_prompts()[4::3], num_tokens=12)
    served = toy.serve(Setting(scheduler="chunked"), cases, open_checkpoint(tmp_path))
    find_near_ties(partial(gap, model), cases, served.token_ids)


def save_in_mxfp4(model: Any, path: Path) -> dict[str, torch.Tensor]:
    """Write a gpt-oss with packed experts; return the numbers of the experts that were written."""
    model.save_pretrained(path)
    rounded, stored = {}, load_file(path / "model.safetensors")
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales, rounded[name] = to_mxfp4(stored.pop(name))
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (path / "config.json").write_text(json.dumps(config))
    return rounded


def to_mxfp4(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Blocks and scales of a tensor [experts, in, out], and the numbers that they stand for."""
    rows = tensor.mT.contiguous()
    packed = torch.from_numpy(quantize(rows.numpy(), Kind.MXFP4))
    exact = torch.from_numpy(dequantize(packed.numpy(), Kind.MXFP4))
    blocks = packed.view(*rows.shape[:2], -1, 17)
    # GGUF's byte k has the numbers k and k + 16, the publisher's 2k and 2k + 1.
    numbers = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), dim=-1)
    pairs = numbers.unflatten(-1, (16, 2))
    return (pairs[..., 0] | pairs[..., 1] << 4), blocks[..., 0].contiguous(), exact.mT.contiguous()


def test_longrope_serves_long_contexts_when_they_are_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sequences beyond the original context have other frequencies, in transformers too."""
    config = MODELS["phi4-mini"]
    changes = {**config.changes, "original_max_position_embeddings": 32}
    model = replace(config, changes=changes).make()
    model.save_pretrained(tmp_path)
    checkpoint, setting = open_checkpoint(tmp_path), Setting(scheduler="chunked")
    prompts = toy.make_prompts()
    long = make_cases(model, [prompt for prompt in prompts if len(prompt) > 32], num_tokens=8)
    served = toy.serve(setting, long, checkpoint, max_model_len=200)
    find_near_ties(partial(gap, model), long, served.token_ids)
    short = make_cases(model, [prompt for prompt in prompts if len(prompt) < 24], num_tokens=8)
    assert "longrope_changes_short_prompts" in [one.msg for one in caplog.records]
    caplog.clear()
    served = toy.serve(setting, short, checkpoint)
    assert "longrope_changes_short_prompts" not in [one.msg for one in caplog.records]
    find_near_ties(partial(gap, model), short, served.token_ids)
    assert toy.serve(setting, short, checkpoint, max_model_len=200).token_ids != served.token_ids


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi4-mini", "smollm3"])
def test_native_kernels_serve_nearly_the_same_in_bfloat16(name: str, tmp_path: Path) -> None:
    """The tokens are the reference's, or nearly as likely where they first differ."""
    model, (path, *_) = write(name, tmp_path)
    cases = make_cases(model, toy.make_prompts()[4::3], num_tokens=8)
    served = toy.serve(Setting(scheduler="chunked"), cases, open_checkpoint(path), dtype="bfloat16")
    for case, output in zip(cases, served.token_ids, strict=True):
        at = next((i for i in range(8) if output[i] != case.token_ids[i]), None)
        if at is not None:
            assert gap(model, [*case.prompt_token_ids, *case.token_ids[:at]]) < 0.25


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers_in_every_setting(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With two files, each is served in half of the settings."""
    model, paths = write(name, tmp_path)
    cases = make_cases(model, toy.make_prompts(), num_tokens=48)
    checkpoints = [open_checkpoint(path) for path in paths]
    settings = alternating_product(WHOLE, CHUNKS)
    record_property("settings", len(settings))
    record_property("prompts", len(cases))
    for index, setting in enumerate(settings):
        checkpoint = checkpoints[index // 2 % len(checkpoints)]
        drafts = speculate("ngram", 1 + index % 8) if index % 2 else {}
        served = toy.serve(setting, cases, checkpoint, **drafts)
        find_near_ties(partial(gap, model), cases, served.token_ids)


def make_cases(
    model: object, prompts: list[tuple[int, ...]], num_tokens: int
) -> list[ReferenceCase]:
    outputs = continue_greedily(model, prompts, num_tokens)
    names = [f"{len(prompt)} tokens" for prompt in prompts]
    return list(map(ReferenceCase, names, prompts, outputs))
