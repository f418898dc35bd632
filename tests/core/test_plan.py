"""Plans and results are plain data: they survive the way to a worker in another process."""

from __future__ import annotations

import msgspec

from tokenmill.core.plan import (
    Grant,
    RequestFailure,
    RequestStart,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from tokenmill.core.requests.sampling_params import SamplingParams


def test_a_plan_survives_a_msgpack_round_trip() -> None:
    plan = StepPlan(
        step_id=3,
        ended=("a",),
        starts=(
            RequestStart(
                engine_id="b",
                token_ids=(1, 2, 3),
                num_prompt_tokens=2,
                sampling_params=SamplingParams(stop=("x",), logit_bias={5: -1.0}, seed=7),
                seed=2**63 - 1,
                stop_token_ids=(2,),
            ),
        ),
        grants=(Grant(engine_id="b", start=0, num_tokens=3, new_block_ids=((4,),), samples=True),),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan) == plan
    assert plan.num_tokens == 3


def test_a_result_survives_a_msgpack_round_trip() -> None:
    result = StepResult(
        step_id=3,
        token_ids=((9,), ()),
        logprobs=((TokenLogprobs(token_id=9, logprob=-0.5, rank=1, top=((9, -0.5),)),), ()),
        failures=(RequestFailure(engine_id="c", message="NaN"),),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=StepResult) == result
