"""Errors name fields as the API of their request does."""

from __future__ import annotations

import pytest

from tokenmill.api.http.errors import APIError, own_names
from tokenmill.core.errors import InvalidRequestError, named
from tokenmill.core.processes.channels.refusals import describe_refusal, raised_by

NAMES = {"messages[].tool_calls": "input[]", "max_tokens": "max_output_tokens"}
TEXT = f"{named('max_tokens')} is 5; the client's max_tokens and 'max_tokens' are other words"


def test_an_api_names_marked_fields_and_changes_no_other_word() -> None:
    error = InvalidRequestError(TEXT, param="max_tokens")
    assert str(error).startswith("max_tokens is 5")
    with pytest.raises(InvalidRequestError) as caught, own_names(NAMES):
        raise raised_by(describe_refusal(1, error))  # as an error of the engine's process
    expected = "max_output_tokens is 5; the client's max_tokens and 'max_tokens' are other words"
    assert (str(caught.value), caught.value.param) == (expected, "max_output_tokens")


def test_a_path_has_the_own_name_of_its_beginning() -> None:
    text = f"{named('messages[3].tool_calls[0].id')} must be a string"
    with pytest.raises(APIError) as caught, own_names(NAMES):
        raise APIError(400, text, param="messages")
    assert caught.value.message == "input[][].id must be a string"
    assert caught.value.param == "messages"
