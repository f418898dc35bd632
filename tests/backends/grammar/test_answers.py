"""Answers of the toy model follow their grammar, whatever else happens to them."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema
import pytest

from tokenmill.core.contract.events import Preempted, StepDone
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.engine.request import Request
from tokenmill.core.outputs import FinishReason
from tokenmill.core.requests.grammar import Grammar
from tokenmill.core.requests.sampling_params import SamplingParams

from .toy import END, SCHEMA, answer, serve, text_of

SETTINGS: dict[str, dict[str, Any]] = {
    "one by one": {"async_scheduling": False},
    "one step ahead": {},
    "torch": {"attention_backend": "torch", "linear_backend": "torch"},
    "chunked": {"max_num_batched_tokens": 32, "max_num_seqs": 16},
    "preempted": {"num_gpu_blocks_override": 24},
    "swapped": {"num_gpu_blocks_override": 24, "preemption_mode": "swap"},
    "n-gram": {"speculative_method": "ngram", "draft_length": "fixed"},
    "n-gram, preempted": {
        "speculative_method": "ngram",
        "draft_length": "fixed",
        "num_gpu_blocks_override": 24,
    },
}


class Watcher:
    """Counts what a setting is about."""

    def __init__(self) -> None:
        self.num_preemptions = self.num_draft_tokens = self.num_accepted_tokens = 0

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.num_draft_tokens += event.num_draft_tokens
        self.num_accepted_tokens += event.num_accepted_tokens

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self.num_preemptions += 1


def constrained(**changes: Any) -> SamplingParams:
    fields = {"grammar": Grammar.json_schema(SCHEMA), "max_tokens": 300} | changes
    return SamplingParams(**fields)


PARAMS = (
    constrained(temperature=0),
    constrained(seed=1),
    constrained(seed=2, temperature=0.7, top_k=20, min_p=0.01),
    constrained(seed=3, top_p=0.9, repetition_penalty=1.3, logit_bias={ord("z"): 5.0}),
    SamplingParams(temperature=0, max_tokens=40),
    constrained(seed=4, logprobs=2),
)


@pytest.mark.parametrize("setting", SETTINGS)
def test_answers_that_stop_validate_and_are_the_same_in_every_setting(setting: str) -> None:
    watcher = Watcher()
    found = serve(PARAMS, plugins=[watcher], **SETTINGS[setting])
    assert ("preempted" in setting or setting == "swapped") is (watcher.num_preemptions > 0)
    assert ("n-gram" in setting) is (watcher.num_draft_tokens > 0)
    for params, request in zip(PARAMS, found, strict=True):
        if params.grammar is not None:
            check_answer(request)
    # The torch setting rounds sums in another order, which may change a token.
    if setting != "torch":
        assert [request.token_ids for request in found] == plain()


@functools.cache
def plain() -> list[list[int]]:
    return [request.token_ids for request in serve(PARAMS, async_scheduling=False)]


def check_answer(request: Request) -> None:
    assert request.finish_reason is FinishReason.STOP, text_of(request.token_ids)
    assert request.token_ids[-1] == END
    jsonschema.validate(answer(request), SCHEMA)


def test_the_rest_of_the_batch_is_not_constrained() -> None:
    free = PARAMS[4]
    alone = serve([constrained(temperature=0), free])[1]
    beside = serve([SamplingParams(temperature=0, max_tokens=30), free])[1]
    assert alone.token_ids == beside.token_ids


def test_a_grammar_ends_before_min_tokens_only_if_nothing_else_may_come() -> None:
    short = constrained(grammar=Grammar.choice(["yes", "no"]), min_tokens=50, seed=0)
    longer = constrained(grammar=Grammar.regex("a{1,30}"), min_tokens=20, seed=0)
    found = serve([short, longer])
    texts = [text_of(one.token_ids[one.num_prompt_tokens :]) for one in found]
    assert [one.finish_reason for one in found] == [FinishReason.STOP] * 2
    assert texts[0] in ("yes", "no")
    assert len(texts[1]) >= 20


def test_ignore_eos_does_not_continue_after_the_grammar() -> None:
    (request,) = serve([constrained(temperature=0, ignore_eos=True)])
    check_answer(request)


def test_a_stop_token_ends_a_constrained_answer() -> None:
    grammar = Grammar.regex("a{20}b")
    (request,) = serve([constrained(grammar=grammar, stop_token_ids=(ord("a"),), temperature=0)])
    assert request.finish_reason is FinishReason.STOP
    assert request.num_generated_tokens == 1


def test_a_grammar_that_fails_ends_only_its_request() -> None:
    """Admission would have refused it."""
    bad = constrained(grammar=Grammar.regex("(("))
    good = constrained(temperature=0)
    first, second = serve([bad, good])
    assert first.finish_reason is FinishReason.ERROR
    check_answer(second)
