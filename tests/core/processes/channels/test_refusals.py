"""Exceptions of a child process arrive as the same exceptions."""

from __future__ import annotations

import msgspec
import pytest

from tokenmill.core.errors import (
    ConfigError,
    InvalidRequestError,
    OverloadedError,
    PluginError,
    RateLimitedError,
    TokenmillError,
)
from tokenmill.core.processes.channels.messages import NotStarted, Refused, encode
from tokenmill.core.processes.channels.refusals import describe_refusal, not_started, raised_by

decode = msgspec.msgpack.Decoder(Refused).decode


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("too hot", param="temperature"),
        OverloadedError("full", retry_after=2.5),
        RateLimitedError("slower", retry_after=30.0),
        TokenmillError("else"),
    ],
)
def test_refusals_arrive_as_the_same_exception(error: TokenmillError) -> None:
    message = describe_refusal(3, error)
    found = raised_by(decode(encode(message)))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_a_failed_start_arrives_as_the_same_kind_of_exception() -> None:
    assert type(raised_by(NotStarted("PluginError", "broken"))) is PluginError
    assert issubclass(PluginError, ConfigError)
    assert type(raised_by(NotStarted("OSError", "unknown"))) is TokenmillError


def test_a_start_that_fails_by_mistake_names_the_process_and_the_exception() -> None:
    assert not_started(PluginError("broken"), "worker 1") == NotStarted("PluginError", "broken")
    text = "worker 1 failed to start: ValueError: broken"
    assert not_started(ValueError("broken"), "worker 1") == NotStarted("TokenmillError", text)
