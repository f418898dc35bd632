"""A draft head changes how many steps an answer takes, never the answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tokenmill.assembly import make_draft_model
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.draft_head_files import DraftHeadFiles
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import no_progress
from tokenmill.core.requests.sampling_params import SamplingParams

from ..models.dense import compute_hidden
from ..tiny import CPU
from ..tiny_checkpoints import TARGET, write_head, write_model
from .drafts import Serving, serve
from .test_model_runner import GREEDY, PROMPTS, SETTINGS, check_greedy


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    target = write_model(folder / "target", TARGET, 1)
    (folder / "prompts.txt").write_text("\n".join(chr(97 + i) * (i % 5 + 1) for i in range(26)))
    make_draft_model(
        EngineConfig(model=str(target), device="cpu", num_gpu_blocks_override=200),
        folder / "trained",
        no_progress,
        prompts_file=folder / "prompts.txt",
        num_tokens=3000,
        num_steps=120,
        max_len=48,
        draft_vocab_size=0,
    )
    return {
        "target": target,
        "trained": folder / "trained",
        "random": write_head(folder / "random", TARGET, 2),
    }


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> list[tuple[int, ...]]:
    return serve(models["target"], None, PROMPTS, GREEDY, num_gpu_blocks_override=200).token_ids


Greedy = Callable[[str, str], Serving]


@pytest.fixture(scope="module")
def greedy(models: dict[str, Path]) -> Greedy:
    """Serves the prompts in a setting with a draft, once for all tests."""
    return functools.cache(
        lambda setting, draft: serve(
            models["target"], models[draft], PROMPTS, GREEDY, **SETTINGS[setting]
        )
    )


@pytest.mark.parametrize("draft", ["trained", "random"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_greedy_answers_are_those_without_a_head(
    setting: str, draft: str, greedy: Greedy, expected: list[tuple[int, ...]]
) -> None:
    served = greedy(setting, draft)
    check_greedy(served, setting, expected)
    if draft == "trained" and setting != "adaptive":
        assert served.num_accepted > 0


def test_seeded_answers_are_those_without_a_head(models: dict[str, Path]) -> None:
    plain = SamplingParams(temperature=0.7, max_tokens=20)
    params = [
        replace(plain, seed=i, top_k=(0, 30)[i % 2], top_p=(1.0, 0.9)[i // 2 % 2])
        for i in range(len(PROMPTS))
    ]
    options = {"num_gpu_blocks_override": 16, "preemption_mode": "swap"}
    served, expected = (
        serve(models["target"], path, PROMPTS, params, **options)
        for path in (models["trained"], None)
    )
    assert served.token_ids == expected.token_ids
    assert served.num_drafts > 0


@pytest.mark.parametrize("draft", ["trained", "random"])
@pytest.mark.parametrize("setting", ["ample", "small steps", "swap"])
def test_drafts_are_what_the_head_would_say_of_the_whole_text(
    setting: str, draft: str, models: dict[str, Path], greedy: Greedy
) -> None:
    """Whatever was cached, preempted, cut into chunks or drafted before."""
    served = greedy(setting, draft)
    target = load_decoder(
        open_checkpoint(models["target"]), dtype=torch.float32, device=CPU, progress=no_progress
    )
    files = DraftHeadFiles(models[draft])
    spec = LinearSpec(dtype=torch.float32, device=CPU)
    head = files.load(TorchLinear(spec), spec)
    token_ids_d = files.token_ids()
    assert len(served.proposals) > 50
    with torch.inference_mode():
        for known, drafted in served.proposals:
            state = compute_hidden(target, torch.tensor(known[:-1]))[-1:]
            for last, token_id in zip((known[-1], *drafted), drafted, strict=False):
                embedded = target.embedding(torch.tensor([last]))
                state = head.advance(state, embedded)
                assert token_ids_d[head.logits(state).argmax()] == token_id


def test_slots_ahead_are_not_taken(greedy: Greedy) -> None:
    """It has no KV of its own: no block is needed for it, none is smaller."""
    served = greedy("ample", "trained")
    assert all(not g.num_lookahead_tokens for plan in served.plans for g in plan.grants)


def test_native_kernels_draft_as_well(models: dict[str, Path]) -> None:
    """bfloat16 hidden states straight from the native decoder are as good as float32 ones."""
    load_library()  # else torch would compute
    params = SamplingParams(temperature=0, max_tokens=24)
    rates = []
    for dtype in ("float32", "bfloat16"):
        served = serve(
            models["target"], models["trained"], PROMPTS, params, **SETTINGS["ample"], dtype=dtype
        )
        rates.append(served.num_accepted / served.num_drafts)
    assert rates[1] > 0.7 * rates[0] > 0


def test_seeded_answers_of_native_kernels_are_those_without_a_head(
    models: dict[str, Path],
) -> None:
    """Each alone: in bfloat16 what else is in the batch shows in the last bits."""
    load_library()
    for seed, prompt in enumerate(PROMPTS[:4]):
        params = SamplingParams(temperature=0.7, max_tokens=16, seed=seed, top_k=30 * (seed % 2))
        served, expected = (
            serve(models["target"], path, [prompt], params, **SETTINGS["ample"], dtype="bfloat16")
            for path in (models["trained"], None)
        )
        assert served.token_ids == expected.token_ids
        assert served.num_drafts > 0


def test_native_kernels_accept_as_many_drawn_drafts_as_torch(models: dict[str, Path]) -> None:
    load_library()
    params = SamplingParams(temperature=0.7, max_tokens=48, top_p=0.9)
    rates = []
    for dtype in ("float32", "bfloat16"):
        served = serve(
            models["target"], models["trained"], PROMPTS, params, **SETTINGS["ample"], dtype=dtype
        )
        rates.append(served.num_accepted / served.num_drafts)
    assert 0 < 0.5 * rates[0] < rates[1] < 2 * rates[0]
