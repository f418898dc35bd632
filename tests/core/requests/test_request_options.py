"""What comes with a request is checked where it enters, and stays as it was."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.requests.request_options import RequestOptions


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"request_id": ""}, "request_id", "1 to 512 characters, got 0"),
        ({"request_id": "x" * 513}, "request_id", "got 513"),
        ({"client_request_id": "x" * 257}, "client_request_id", "1 to 256"),
        ({"user": 5}, "user", "0 to 512 characters, got int"),
        ({"api_key_id": ""}, "api_key_id", "1 to 256"),
        ({"cache_salt": ""}, "cache_salt", "1 to 128"),
        ({"cache_salt": "x" * 129}, "cache_salt", "1 to 128"),
        ({"priority": 2**31 + 1}, "priority", r"\[-2147483648, 2147483648\]"),
        ({"priority": True}, "priority", "integer"),
        ({"priority": 1.0}, "priority", "integer"),
        ({"prompt_index": -1}, "prompt_index", r"\[0, "),
        ({"metadata": "tenant"}, "metadata", "map texts to texts, got str"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "at most 16 pairs, got 17"),
        ({"metadata": {"": "x"}}, "metadata", "1 to 64 characters, got 0"),
        ({"metadata": {"x" * 65: "x"}}, "metadata", "1 to 64 characters, got 65"),
        ({"metadata": {1: "x"}}, "metadata", "got int"),
        ({"metadata": {"a": "x" * 513}}, "metadata", "at most 512 characters, got 513 for 'a'"),
        ({"metadata": {"a": None}}, "metadata", "got NoneType for 'a'"),
        ({"request_timeout": 0}, "request_timeout", r"seconds in \(0, 2147483648\], got 0"),
        ({"request_timeout": True}, "request_timeout", "got True"),
        ({"request_timeout": "5"}, "request_timeout", "got '5'"),
        ({"request_timeout": float("nan")}, "request_timeout", "got nan"),
        ({"metadat": {}}, "metadat", "Did you mean 'metadata'"),
    ],
)
def test_a_wrong_field_is_named_with_its_range(
    fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        RequestOptions().with_changes(**fields)
    assert raised.value.param == param


def test_the_largest_values_are_taken() -> None:
    options = RequestOptions(
        request_id="x" * 512,
        user="",
        cache_salt="x" * 128,
        priority=-(2**31),
        metadata={f"{i:064}": "x" * 512 for i in range(16)},
    )
    assert len(options.metadata) == 16


def test_metadata_is_a_copy_that_cannot_be_changed() -> None:
    given = {"tenant": "a"}
    metadata = RequestOptions(metadata=given).metadata
    given["tenant"] = "b"
    assert metadata == {"tenant": "a"}
    with pytest.raises(TypeError):
        metadata["tenant"] = "b"  # type: ignore[index]


def test_options_can_be_written_as_json() -> None:
    written = asdict(RequestOptions(metadata={"tenant": "a"}))
    assert json.loads(json.dumps(written))["metadata"] == {"tenant": "a"}


def test_changes_keep_the_rest() -> None:
    options = RequestOptions(user="u", priority=3)
    assert options.with_changes(priority=1) == RequestOptions(user="u", priority=1)
