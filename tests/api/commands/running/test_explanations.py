"""The text of an explanation, as the documentation shows it."""

from __future__ import annotations

from tests.docs.pages import ROOT
from tokenmill.api.commands.running.explanations import explanation_text
from tokenmill.core.contract.explanation import Explanation, Limit, LongestGap, Preemption

PREEMPTED = {"mode": "recompute", "priority": 5, "by_priority": 5}
EXAMPLE = Explanation(
    request_id="chatcmpl-batch-2",
    engine_id="chatcmpl-batch-2",
    api_key_id="admin",
    finish_reason="length",
    seconds=2.9,
    first_token_seconds=0.29,
    num_prompt_tokens=180,
    num_cached_tokens=16,
    num_generated_tokens=140,
    waiting={Limit.OPEN_STEP: 0.1649},
    prompt_alone=0.127,
    prompt_others=0.002,
    num_prompt_steps=1,
    num_other_tokens=1,
    preempted=0.53,
    preemptions=(
        Preemption(step_id=47, by="chatcmpl-batch-2", num_tokens=224, **PREEMPTED),
        Preemption(step_id=94, by="chatcmpl-batch-1", num_tokens=252, **PREEMPTED),
    ),
    decode_alone=1.31,
    decode_others=0.73,
    longest_gap=LongestGap(seconds=0.36, step_id=66, cause="chatcmpl-batch-3"),
    server={"plugins, mostly chunked (schedule)": 0.029, "messages and event loops": 0.004},
)


def test_the_documentation_shows_what_the_command_prints() -> None:
    page = (ROOT / "docs/why.md").read_text(encoding="utf-8")
    assert f"$ tokenmill why chatcmpl-batch-2\n{explanation_text(EXAMPLE)}\n```" in page


def test_the_documentation_names_every_limit() -> None:
    page = (ROOT / "docs/why.md").read_text(encoding="utf-8")
    assert [str(limit) for limit in Limit if str(limit) not in page] == []


def test_holders_and_the_request_before_it_are_named() -> None:
    found = Explanation(
        request_id="a",
        engine_id="a",
        finish_reason=None,
        seconds=3.0,
        num_prompt_tokens=5,
        waiting={Limit.BLOCKS: 2.0, Limit.BUDGET: 1.0},
        held_by=("b", "c"),
        behind="d",
    )
    head, waiting = explanation_text(found).splitlines()
    assert head == "a · prompt 5 · 0 generated · 3.00 s, no token yet · not finished"
    assert waiting.endswith("no free blocks 2.00 s (held by b, c); token budget 1.00 s; behind d")


def test_the_time_of_images_stands_beside_that_of_the_prompt() -> None:
    found = Explanation(
        request_id="a",
        engine_id="a",
        finish_reason=None,
        seconds=1.0,
        num_prompt_tokens=80,
        prompt_images=0.75,
        prompt_alone=0.25,
        num_prompt_steps=2,
    )
    line = explanation_text(found).splitlines()[1]
    assert line == "prompt        1.00 s  80 tokens in 2 steps; images 0.75 s"


def test_a_failed_step_a_swap_and_a_priority_are_told_apart() -> None:
    lines = []
    for given in (
        {"mode": "failed step", "by": None, "priority": 0, "by_priority": 0},
        {"mode": "swap", "by": "b", "priority": 5, "by_priority": 0},
    ):
        one = Preemption(step_id=7, num_tokens=1, **given)  # type: ignore[arg-type]
        found = Explanation(
            request_id="a",
            engine_id="a",
            finish_reason="stop",
            seconds=1.0,
            num_prompt_tokens=5,
            preempted=1.0,
            preemptions=(one,),
        )
        lines.append(explanation_text(found).splitlines()[1])
    assert lines[0].endswith("once; step 7 failed: 1 token computed again")
    assert lines[1].endswith("once; step 7, by b (priority 0 before 5): 1 token copied")
