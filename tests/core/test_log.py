"""Log lines: text for people, JSON for programs, and the fields of the context in both."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from io import StringIO

import pytest
from structlog.contextvars import bound_contextvars

from tokenmill.core.log import EventFormatter, JsonFormatter, get_logger


@pytest.fixture
def output() -> Iterator[StringIO]:
    handler = logging.StreamHandler(stream := StringIO())
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("tokenmill")
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def test_an_event_is_one_json_object_with_its_fields(output: StringIO) -> None:
    get_logger("room").warning("it_happened", number=3, text='a "b"\n日 \ud800', path=object)
    [line] = output.getvalue().splitlines()
    found = json.loads(line)
    assert datetime.fromisoformat(found.pop("time")).tzinfo is not None
    assert found == {
        "level": "warning",
        "logger": "tokenmill.room",
        "event": "it_happened",
        "number": 3,
        "text": 'a "b"\n日 \ud800',
        "path": "<class 'object'>",
    }


def test_a_program_without_logging_gets_the_fields_in_the_message() -> None:
    code = (
        "from tokenmill.core.log import get_logger;"
        "get_logger('room').warning('it_happened', reason='100% because', number=3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "it_happened reason='100% because' number=3\n"


def test_an_exception_is_a_field(output: StringIO) -> None:
    try:
        raise KeyError("planted")
    except KeyError:
        get_logger("room").exception("it_broke")
        logging.getLogger("tokenmill.plain").exception("%s broke", "it")
    for line in output.getvalue().splitlines():
        assert "KeyError: 'planted'" in json.loads(line)["exception"]
    assert json.loads(line)["event"] == "it broke"


def test_fields_of_the_context_are_in_both_formats(output: StringIO) -> None:
    with bound_contextvars(request_id="abc"):
        get_logger("room").warning("inside")
        record = logging.makeLogRecord({"msg": "inside", "levelno": logging.INFO})
        assert EventFormatter("%(message)s").format(record) == "inside request_id='abc'"
        get_logger("room").warning("own", request_id="xyz")
    get_logger("room").warning("outside")
    found = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [one.get("request_id") for one in found] == ["abc", "xyz", None]


def test_a_record_of_another_process_has_its_exception_as_text() -> None:
    record = logging.makeLogRecord({"msg": "it_broke", "exc_text": "KeyError: 'planted'"})
    assert json.loads(JsonFormatter().format(record))["exception"] == "KeyError: 'planted'"
