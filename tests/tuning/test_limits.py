"""Limits are read from the command line and compared with outcomes."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.tuning.limits import Limits

from ..planning.planning import make_request, run

# A prompt of 32 tokens takes 42 ms, each of three more tokens 11 ms.
ONE = run([make_request(0, length=32, max_tokens=4)])


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ("ttft:42.1", True),
        ("ttft:41.9", False),
        ("tpot:11.1", True),
        ("tpot:10.9", False),
        ("itl:11.1", True),
        ("itl:10.9", False),
        ("e2el:75.1", True),
        ("e2el:74.9", False),
    ],
)
def test_each_limit_is_compared_with_its_latency(text: str, is_kept: bool) -> None:
    assert Limits.parse([text]).are_kept(ONE, 1) is is_kept


def test_a_request_that_is_not_completed_breaks_every_limit() -> None:
    assert not Limits().are_kept(ONE, 2)


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:-1", "ttft:nan", "ttfb:5"])
def test_wrong_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--goodput"):
        Limits.parse([text])


def test_one_limit_is_left_out_at_a_time() -> None:
    limits = Limits.parse(["ttft:5", "itl:6"])
    assert [(name, str(rest)) for name, rest in limits.without()] == [
        ("ttft", "itl 6 ms"),
        ("itl", "ttft 5 ms"),
    ]
