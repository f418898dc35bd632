"""A draft model changes how many steps an answer takes, never the answer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmill import AsyncEngine
from tokenmill.backends.drafting.model_runner import DraftRunner
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.errors import RequestFailedError
from tokenmill.core.interfaces import no_progress
from tokenmill.core.plan import StepPlan
from tokenmill.core.requests.sampling_params import SamplingParams

from ..models.dense import compute_logits
from ..tiny import CPU, make_prompt
from ..tiny_checkpoints import DRAFT, TARGET, write_model
from .drafts import Serving, serve

BEGINNING = make_prompt(37, 99)
PROMPTS = [
    *(make_prompt(length, length) for length in (1, 7, 8, 16, 33, 60)),
    *(BEGINNING + make_prompt(length, length) for length in (1, 5, 11, 20)),
    BEGINNING,
]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": write_model(folder / "target", TARGET, 1),
        # The same first layer: right now and then.
        "alike": write_model(folder / "alike", replace(TARGET, num_layers=1), 1),
        "other": write_model(folder / "other", DRAFT, 2),
        "same": write_model(folder / "same", TARGET, 1),
    }


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> list[tuple[int, ...]]:
    return serve(models["target"], None, PROMPTS, GREEDY, num_gpu_blocks_override=200).token_ids


SETTINGS: dict[str, dict[str, Any]] = {
    "ample": {"num_gpu_blocks_override": 200},
    "small steps": {"num_gpu_blocks_override": 200, "max_num_batched_tokens": 24},
    "recompute": {"num_gpu_blocks_override": 16},
    "swap": {"num_gpu_blocks_override": 16, "preemption_mode": "swap"},
    "uncached": {"num_gpu_blocks_override": 16, "enable_prefix_caching": False},
    "prefill-first": {"num_gpu_blocks_override": 16, "scheduler": "prefill-first"},
    "adaptive": {"num_gpu_blocks_override": 200, "speculative_adaptive": True},
    "small blocks": {"num_gpu_blocks_override": 30, "block_size": 8},
}


def check_greedy(served: Serving, setting: str, expected: list[tuple[int, ...]]) -> None:
    """The answers are those without drafts, and what the setting is there for took place."""
    assert served.token_ids == expected
    assert served.num_drafts > 0 or setting == "adaptive"  # which may find that drafts do not pay
    if SETTINGS[setting]["num_gpu_blocks_override"] == 16:
        assert served.num_preemptions > 0
    if setting == "swap":
        assert served.num_swap_ins > 0


Greedy = Callable[[str, str], Serving]


@pytest.fixture(scope="module")
def greedy(models: dict[str, Path]) -> Greedy:
    """Serves the prompts in a setting with a draft, once for all tests."""
    return functools.cache(
        lambda setting, draft: serve(
            models["target"], models[draft], PROMPTS, GREEDY, **SETTINGS[setting]
        )
    )


@pytest.mark.parametrize("draft", ["alike", "other", "same"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_greedy_answers_are_those_without_a_draft_model(
    setting: str, draft: str, greedy: Greedy, expected: list[tuple[int, ...]]
) -> None:
    served = greedy(setting, draft)
    check_greedy(served, setting, expected)
    if draft == "same":  # wherever its half of a block came from, each draft was right
        assert served.num_accepted == served.num_drafts


@pytest.mark.parametrize("setting", ["ample", "small steps", "swap", "recompute", "small blocks"])
def test_drafts_are_what_the_draft_model_would_say_alone(
    setting: str, models: dict[str, Path], greedy: Greedy
) -> None:
    served = greedy(setting, "other")
    decoder = load_decoder(
        open_checkpoint(models["other"]), dtype=torch.float32, device=CPU, progress=no_progress
    )
    assert len(served.proposals) > 50
    with torch.inference_mode():
        for known, draft in served.proposals:
            for i, token_id in enumerate(draft):
                logits = compute_logits(decoder, torch.tensor([*known, *draft[:i]]))
                assert int(logits[-1].argmax()) == token_id


@pytest.mark.parametrize("draft", ["alike", "same"])
def test_seeded_answers_are_those_without_a_draft_model(
    draft: str, models: dict[str, Path]
) -> None:
    plain = SamplingParams(temperature=0.9, max_tokens=20)
    params = [
        replace(plain, seed=i, top_k=(0, 30)[i % 2], top_p=(1.0, 0.9)[i // 2 % 2])
        for i in range(len(PROMPTS))
    ]
    options = {"num_gpu_blocks_override": 16, "preemption_mode": "swap"}
    served, expected = (
        serve(models["target"], path, PROMPTS, params, **options) for path in (models[draft], None)
    )
    assert served.token_ids == expected.token_ids
    assert served.num_drafts > 0
    if draft == "same":
        assert served.num_accepted == served.num_drafts


def test_what_the_target_would_draw_itself_is_accepted_without_a_seed_too(
    models: dict[str, Path],
) -> None:
    params = SamplingParams(temperature=1.1, max_tokens=24, top_p=0.95)
    served = serve(models["target"], models["same"], PROMPTS, params, num_gpu_blocks_override=200)
    assert served.num_accepted > 0.95 * served.num_drafts > 0


def test_penalties_and_bias_are_the_draft_models_too(models: dict[str, Path]) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=24, repetition_penalty=1.2, logit_bias={5: 4.0, 9: -50.0}
    )
    served, expected = (
        serve(models["target"], path, PROMPTS, params, num_gpu_blocks_override=200)
        for path in (models["same"], None)
    )
    assert served.token_ids == expected.token_ids
    assert served.num_accepted > 0.5 * served.num_drafts > 0


def test_a_draft_model_made_for_shorter_sequences_stops_where_it_ends(
    models: dict[str, Path], tmp_path: Path
) -> None:
    short = write_model(tmp_path / "short", replace(DRAFT, max_position_embeddings=40), 2)
    params = SamplingParams(temperature=0, max_tokens=30)
    served, expected = (
        serve(models["target"], path, PROMPTS[:5], params, num_gpu_blocks_override=200)
        for path in (short, None)
    )
    assert served.token_ids == expected.token_ids
    assert served.num_drafts > 0


def test_a_step_that_fails_in_the_draft_model_ends_its_own_requests_alone(
    models: dict[str, Path], expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_step = DraftRunner.begin_step
    num_calls = 0

    def fail_once(runner: DraftRunner, plan: StepPlan) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise RuntimeError("a copy failed")
        begin_step(runner, plan)

    monkeypatch.setattr(DraftRunner, "begin_step", fail_once)
    options: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_gpu_blocks_override": 200}

    async def answer_twice() -> tuple[int, ...]:
        async with AsyncEngine(
            str(models["target"]), speculative_model=str(models["same"]), **options
        ) as engine:
            with pytest.raises(RequestFailedError):
                await finish(engine, PROMPTS[0])
            return await finish(engine, PROMPTS[0])

    assert asyncio.run(answer_twice()) == expected[0]
    assert num_calls > 3


async def finish(engine: AsyncEngine, prompt: list[int]) -> tuple[int, ...]:
    async for output in engine.generate(prompt, GREEDY):
        last = output
    return last.outputs[0].token_ids
