"""A step that scores prompt tokens takes no longer than one that computes a whole token budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.shell.new_core import SCORING_WIDTH, make_core
from tokenmill.core.shell.new_requests import make_requests
from tokenmill.testing.simulated.executor import SimulatedExecutor

BUDGET = 64


def num_scored_in_first_step(*, vocab_size: int, hidden_size: int, num_in_layers: int) -> int:
    """Scored tokens in the first step of a long prompt, for a model with `num_in_layers`
    parameters in its layers."""
    executor = SimulatedExecutor(num_blocks=64, block_size=4, vocab_size=vocab_size)
    info = replace(
        executor.info,
        hidden_size=hidden_size,
        num_parameters=vocab_size * hidden_size + num_in_layers,
    )
    config = EngineConfig(max_num_batched_tokens=BUDGET, max_num_seqs=4)
    core = make_core(config, info, PluginHost.load(config), 256)
    params = SamplingParams(max_tokens=1, prompt_logprobs=2)
    checked = check_ids([1] * 200, params, vocab_size=info.vocab_size, max_model_len=256)
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
