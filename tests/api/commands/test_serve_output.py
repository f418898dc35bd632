"""What `tokenmill serve` writes if standard error is no terminal: JSON lines, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.server_process import running_server
from tokenmill.api.cli import make_parser

ASK = {"prompt": "abc", "max_tokens": 2}


@pytest.mark.parametrize(
    ("flags", "is_logged"),
    [
        ((), True),
        (("--enable-log-requests",), True),
        (("--no-enable-log-requests",), False),
        (("--disable-log-requests",), False),
    ],
)
def test_flags_of_vllm_choose_whether_requests_are_logged(
    flags: tuple[str, ...], is_logged: bool
) -> None:
    assert make_parser().parse_args(["serve", *flags]).enable_log_requests is is_logged


def test_each_line_is_an_event_and_one_says_where_the_server_listens(tmp_path: Path) -> None:
    with running_server(
        tmp_path, "--disable-log-requests", "--served-model-name", "mine",
        program=("tests.api.toy_serve",),
    ) as server:  # fmt: skip
        ask = ASK | {"user": "write"}
        assert httpx.post(f"{server.url}/v1/completions", json=ask).status_code == 200
        assert httpx.get(f"{server.url}/v1/nothing").status_code == 404
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    [listening] = [one for one in events if one["event"] == "listening"]
    assert (listening["address"], listening["model"]) == (server.url, "mine")
    assert listening["seconds"] > 0 and listening["num_kv_tokens"] == 1024
    printed = [one["text"] for one in events if one["event"] == "printed"]
    assert printed == ["a plugin prints", "100 %", "native code writes"]
    stages = [(one["event"], one["stage"]) for one in events if "stage" in one]
    assert stages == [
        (event, stage)
        for stage in ("starting the engine", "loading the toy")
        for event in ("stage_begun", "stage_done")
    ]
    assert [one["event"] for one in events][-2:] == ["draining", "stopped"]
    assert not [one for one in events if one["event"] == "request"]


def test_what_a_plugin_prints_in_the_servers_own_process_is_an_event_of_its_request(
    tmp_path: Path,
) -> None:
    program = ("tests.api.toy_serve",)
    with running_server(tmp_path, "--no-engine-process", program=program) as server:
        ask = ASK | {"user": "write"}
        answer = httpx.post(f"{server.url}/v1/completions", json=ask).json()
    lines = server.log.read_text().splitlines()
    [event] = [json.loads(line) for line in lines if '"printed"' in line]
    assert (event["text"], event["request_id"]) == ("a plugin prints", answer["id"])
    assert "native code writes" in lines, "a pipe would lose its last words before a crash"
