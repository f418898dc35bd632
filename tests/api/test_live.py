"""The live page: who may see what, and that its figures are those of the engine."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tokenmill.api.cli import main
from tokenmill.api.http.keys.auth import PUBLIC_PATHS
from tokenmill.core.contract.activity import BlockState, count_blocks

from .serving import PATIENCE, Served, SteeredExecutor, serve_engine, toy_engine
from .test_docs_page import linked_files
from .toy_process import toy_process

ADMIN = {"Authorization": "Bearer sk-admin"}
BODY = {"prompt": "twelve chars", "max_tokens": 5, "ignore_eos": True}


@pytest.fixture
def held() -> Iterator[tuple[Served, SteeredExecutor]]:
    """A server with an admin key whose device can be held."""
    executor = SteeredExecutor()
    engine = toy_engine(executor, max_num_seqs=1)
    with serve_engine(engine, admin_key="sk-admin") as served:
        yield served, executor
        executor.gate.set()


def post(served: Served, request_id: str) -> threading.Thread:
    def send() -> None:
        with served.client() as http:
            http.post("/v1/completions", json=BODY, headers={"X-Request-Id": request_id})

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_browsers_get_the_page_and_other_clients_the_list_of_paths(http: httpx.Client) -> None:
    page = http.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.text == http.get("/live").text and "<title>tokenmill</title>" in page.text
    assert http.get("/").headers["content-type"].startswith("text/plain")


def test_the_page_and_its_files_are_public_and_from_this_server(http: httpx.Client) -> None:
    page = http.get("/live")
    assert "//" not in page.text.replace("</", ""), "an address of another host"
    listed = {path for path in PUBLIC_PATHS if path.startswith("/live/")}
    assert linked_files(page) <= listed
    for path in listed:
        answer = http.get(path)
        assert answer.status_code == 200 and "default-src 'none'" in str(answer.headers)
        imported = re.findall(r'^import .* from "\./(.*)";$', answer.text, re.MULTILINE)
        assert {f"/live/{name}" for name in imported} <= listed


def test_live_requests_and_their_limits_are_shown(held: tuple[Served, SteeredExecutor]) -> None:
    served, executor = held
    executor.gate.clear()
    threads = [post(served, name) for name in ("first", "second")]
    served.headers = ADMIN
    served.wait_until(lambda load: load["num_running"] + load["num_waiting"] == 2)
    with served.client() as http:
        found = http.get("/live/activity", headers=ADMIN).json()
        hidden = http.get("/live/activity").json()
    executor.gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    [engine], [redacted] = found["engines"], hidden["engines"]
    assert not found["is_redacted"] and hidden["is_redacted"]
    assert {one["request_id"] for one in engine["requests"]} == {"cmpl-first", "cmpl-second"}
    assert [one["waits_for"] is None for one in engine["requests"]] == [True, False]
    names = [one["request_id"] for one in redacted["requests"]]
    assert len(set(names)) == 2 and all(name.startswith("request ") for name in names)
    counts = count_blocks(engine["blocks"])
    assert sum(counts.values()) == 256
    assert counts[BlockState.HELD] == sum(one["num_blocks"] for one in engine["requests"])


def test_steps_add_up_to_the_tokens_of_the_metrics(
    held: tuple[Served, SteeredExecutor],
) -> None:
    served, _ = held
    with served.client(headers=ADMIN) as http:
        for _ in range(3):
            http.post("/v1/completions", json=BODY)
        [engine] = http.get("/live/activity").json()["engines"]
        metrics = http.get("/metrics").text
        steps, last = engine["steps"], engine["steps"][-1]["step_id"]
        [later] = http.get(f"/live/activity?after={last - 2}").json()["engines"]
    computed = sum(s["num_prompt_tokens"] + s["num_decode_tokens"] for s in steps)
    cached = sum(step["num_cached_tokens"] for step in steps)
    assert computed + cached == 3 * (12 + 4), "the last token of an answer is not computed"
    assert re.search(rf"prefix_cache_hits_total\{{.*\}} {cached}\.0", metrics)
    assert [step["step_id"] for step in later["steps"]] == [last - 1, last]
    assert all(step["device_seconds"] >= 0 for step in steps)


@pytest.mark.parametrize("name", ["X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"])
def test_clients_behind_a_proxy_need_the_admin_key(toy: Served, name: str) -> None:
    with toy.client() as http:
        assert http.get("/live/activity").status_code == 200
        answer = http.get("/live/activity", headers={name: "203.0.113.9"})
    assert answer.status_code == 403 and "admin key" in answer.text


def test_a_client_of_a_proxy_in_old_http_needs_the_admin_key(toy: Served) -> None:
    target = urlsplit(toy.url)
    address = target.hostname or "", target.port or 0
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(b"GET /live/activity HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert b" 403 " in client.recv(12) + client.recv(1)


@pytest.mark.parametrize(
    "change", [{"root_path": "/llm"}, {"allowed_hosts": ["llm.example"]}, {"is_local": False}]
)
def test_servers_that_others_reach_need_the_admin_key(change: dict[str, Any]) -> None:
    with serve_engine(toy_engine(), **change) as served, served.client() as http:
        assert http.get("/live/activity").status_code == 403


def test_the_text_of_an_id_does_not_control_the_terminal(
    held: tuple[Served, SteeredExecutor], capsys: pytest.CaptureFixture[str]
) -> None:
    served, executor = held
    executor.gate.clear()
    thread = post(served, "[/x]\x1b]0;pwn\x1b[red]")
    served.headers = ADMIN
    served.wait_until(lambda load: load["num_running"] == 1)
    assert main(["top", "--url", served.url, "--admin-key", "sk-admin"]) == 0
    executor.gate.set()
    thread.join(PATIENCE)
    assert "[/x]?]0;pwn?[red]" in capsys.readouterr().out
    assert main(["why", "--slowest", "3", "--url", served.url, "--admin-key", "sk-admin"]) == 0
    assert "[/x]?]0;pwn?[red]" in capsys.readouterr().out


def test_holders_of_api_keys_do_not_see_each_other() -> None:
    server = serve_engine(toy_engine(), api_keys=["sk-a"], admin_key="sk-admin")
    with server as served, served.client() as http:
        assert http.get("/live").status_code == 200
        assert http.get("/live/activity").status_code == 401
        headers = {"Authorization": "Bearer sk-a"}
        assert http.get("/live/activity", headers=headers).status_code == 403
        assert http.get("/live/activity", headers=ADMIN).status_code == 200


@pytest.mark.parametrize("after", ["x", "1.5", "", "9" * 30, "9" * 5000])
def test_a_wrong_step_is_refused(http: httpx.Client, after: str) -> None:
    answer = http.get("/live/activity", params={"after": after})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "after"


def test_an_engine_in_its_own_process_shows_the_same() -> None:
    server = serve_engine(toy_process(), admin_key="sk-admin")
    with server as served, served.client(headers=ADMIN) as http:
        http.post("/v1/completions", json=BODY)
        [engine] = http.get("/live/activity").json()["engines"]
    assert sum(s["num_prompt_tokens"] + s["num_decode_tokens"] for s in engine["steps"]) == 16


def test_top_shows_it_in_a_terminal(
    held: tuple[Served, SteeredExecutor], capsys: pytest.CaptureFixture[str]
) -> None:
    served, _ = held
    with served.client(headers=ADMIN) as http:
        http.post("/v1/completions", json=BODY)
    assert main(["top", "--url", served.url]) == 0
    text = capsys.readouterr().out
    assert "0 running, 0 waiting" in text and "252 free, 4 cached, 0 held, 0 shared" in text
    assert "0 prompt tokens, 1 decoded" in text
    assert main(["top", "--url", served.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_redacted"]


def test_top_says_what_a_server_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_engine(toy_engine(), ui=False) as served:
        assert main(["top", "--url", served.url]) == 1
    assert "--no-ui" in capsys.readouterr().err


def test_runs_of_blocks_are_counted() -> None:
    found: dict[Any, int] = dict(count_blocks("12f3h1s4h"))
    assert found == {"f": 12, "c": 0, "h": 7, "s": 1}
