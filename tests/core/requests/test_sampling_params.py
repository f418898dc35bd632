"""SamplingParams refuses what cannot be sampled, and says which field is wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill.core.requests.sampling_params
from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.requests.sampling_params import SAMPLED, OutputKind, SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("seed", 2**63),
        ("logprobs", -1),
        ("stop", ["a"] * 17),
        ("stop", [""]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {i: 0.0 for i in range(1025)}),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        SamplingParams(**{field: value})
    assert raised.value.param == field
    assert field in str(raised.value)


def test_a_limit_is_written_out_in_the_error() -> None:
    with pytest.raises(InvalidRequestError, match="an integer from 0 to 2147483648, got -1"):
        SamplingParams(max_tokens=-1)


def test_more_min_tokens_than_max_tokens_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_none_means_not_given_where_it_can() -> None:
    params = SamplingParams(max_tokens=None, seed=None, logprobs=None, logit_bias=None)
    assert (params.max_tokens, params.seed, params.logprobs) == (None, None, None)


def test_temperature_zero_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams().is_greedy


def test_a_changed_copy_is_validated_too() -> None:
    params = SamplingParams().with_changes(output_kind="delta")
    assert params.output_kind is OutputKind.DELTA
    with pytest.raises(InvalidRequestError):
        params.with_changes(n=0)


@pytest.mark.parametrize("value", [10**23, object(), "\ud800"])
def test_extra_args_that_no_message_can_hold_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="plain JSON") as raised:
        SamplingParams(extra_args={"x": value})
    assert raised.value.param == "extra_args"


@pytest.mark.parametrize(
    ("field", "hint"),
    [("best_of", "use n"), ("guided_decoding", "use grammar"), ("detokenize", "remove it")],
)
def test_a_parameter_of_vllm_that_does_not_exist_names_what_to_use(field: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field} is not supported: .*{hint}") as caught:
        SamplingParams(**{field: True})
    assert caught.value.param == field


def test_every_parameter_is_read_by_the_engine_or_a_backend() -> None:
    declared = Path(tokenmill.core.requests.sampling_params.__file__)
    folders = (declared.parents[1], declared.parents[2] / "backends")
    files = [file for folder in folders for file in folder.rglob("*.py") if file != declared]
    read = set(re.findall(r"\.(\w+)", "\n".join(file.read_text("utf-8") for file in files)))
    assert len(SAMPLED) > 20 and set(SAMPLED) <= read


def test_a_float_of_numpy_is_a_number() -> None:
    assert SamplingParams(temperature=np.float64(0.5)).temperature == 0.5
