"""A step that scores prompt tokens takes no longer than one that computes a whole token budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.media import MediaItem
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.shell.new_core import SCORING_WIDTH, make_core
from tokenmill.core.shell.new_requests import make_requests
from tokenmill.testing.simulated.executor import SimulatedExecutor

BUDGET = 64


def num_scored_in_first_step(
    *, vocab_size: int, hidden_size: int, num_in_layers: int, image: MediaItem | None = None
) -> int:
    """Scored tokens in the first step of a long prompt, for a model with `num_in_layers`
    parameters in its layers. `image`: one of the prompt, whose tokens see each other."""
    executor = SimulatedExecutor(
        num_blocks=64, block_size=4, vocab_size=vocab_size, media_bytes=1 << 20
    )
    assert executor.info.media is not None
    info = replace(
        executor.info,
        hidden_size=hidden_size,
        num_parameters=vocab_size * hidden_size + num_in_layers,
        media=replace(
            executor.info.media, largest_span_tokens=0 if image is None else image.num_tokens
        ),
    )
    config = EngineConfig(max_num_batched_tokens=BUDGET, max_num_seqs=4)
    core = make_core(config, info, PluginHost.load(config), 256)
    params = SamplingParams(max_tokens=1, prompt_logprobs=2)
    checked = check_ids([1] * 200, params, vocab_size=info.vocab_size, max_model_len=256)
    if image is not None:
        checked = replace(checked, media=(image,))
    (request,) = make_requests(
        checked, request_id="scored", seed=0, arrival_time=0.0, info=info, config=config
    )
    core.add([request], 0.0)
    plan = core.plan(0.0)
    assert plan is not None
    (grant,) = plan.grants
    return grant.num_scored_tokens


@pytest.mark.parametrize(("layers_per_head", "expected"), [(1, 32), (3, 48), (63, 63), (0, BUDGET)])
def test_the_more_the_logits_cost_the_fewer_tokens_are_scored(
    layers_per_head: int, expected: int
) -> None:
    """Layers that cost as much as the logits: half of the budget. Unknown layers: no limit."""
    to_score = 1000 * (128 + SCORING_WIDTH)
    found = num_scored_in_first_step(
        vocab_size=1000, hidden_size=128, num_in_layers=layers_per_head * to_score
    )
    assert found == expected


@pytest.mark.parametrize(("start", "expected"), [(0, 40), (5, 5), (20, 20)])
def test_an_image_that_one_step_computes_is_scored_by_one_step(start: int, expected: int) -> None:
    """Its 40 tokens are more than the 32 that a step would score."""
    image = MediaItem(
        digest=b"x", start=start, num_tokens=40, cost=1, shape=(), pixels=b"x", is_whole=True
    )
    found = num_scored_in_first_step(
        vocab_size=1000, hidden_size=128, num_in_layers=1000 * (128 + SCORING_WIDTH), image=image
    )
    assert found == expected
