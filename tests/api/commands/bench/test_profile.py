"""`tokenmill bench serve --profile`: a trace of the measured requests, with vLLM's routes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.api.serving import Served, serve_engine, toy_engine
from tokenmill.api.cli import main

KEY = "sk-admin"
WORDS = ["--num-prompts", "3", "--input-len", "5", "--output-len", "4", "--ignore-eos"]


def bench(url: str, folder: Path, *words: str) -> int:
    place = ["--base-url", url, "--result-dir", str(folder), "--result-filename", "a.json"]
    return main(["bench", "serve", *WORDS, *place, "--profile", *words])


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKENMILL_ADMIN_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_the_trace_has_the_measured_requests_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ["--num-warmups", "2", "--ready-check-timeout-sec", "9", "--save-result"]
    with serve_engine(toy_engine(), admin_key=KEY) as served, served.client() as http:
        assert bench(served.url, tmp_path, *more, "--admin-key", KEY) == 0
        path = tmp_path / "a.trace.json"
        facts = json.loads(path.read_text())["otherData"]
        assert facts["requests"] == 3 and facts["steps"] >= 4
        line = f"profile: {path}: {facts['steps']} steps and 3 requests; open it at"
        assert line in capsys.readouterr().out
        assert json.loads((tmp_path / "a.json").read_text())["completed"] == 3
        monkeypatch.setenv("TOKENMILL_ADMIN_KEY", KEY)
        assert bench(served.url, tmp_path) == 0
        again = http.post("/stop_profile", headers={"Authorization": f"Bearer {KEY}"})
        assert again.status_code == 409, "each run has stopped its profile"


def requests_of(served: Served) -> int:
    with served.client() as http:
        text = http.get("/metrics").text
    [line] = [
        one
        for one in text.splitlines()
        if one.startswith("tokenmill:e2e_request_latency_seconds_count")
    ]
    return int(float(line.split()[-1]))


@pytest.mark.parametrize(
    ("server", "words", "reason"),
    [
        ({}, (), "the server has no profile: start tokenmill with --admin-key"),
        ({"admin_key": KEY}, (), "give the server's admin key with --admin-key"),
        ({"admin_key": KEY}, ("--admin-key", "sk-wrong"), "give the server's admin key"),
        ({"admin_key": KEY, "step_log_size": 0}, ("--admin-key", KEY), "--step-log-size 0"),
    ],
)
def test_a_server_without_a_profile_is_named_before_it_is_measured(
    server: dict[str, Any],
    words: tuple[str, ...],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {name: server[name] for name in server if name != "admin_key"}
    with serve_engine(toy_engine(**settings), admin_key=server.get("admin_key")) as served:
        assert bench(served.url, tmp_path, *words) == 1
        assert requests_of(served) == 0
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: --profile: ") and reason in line
    assert not list(tmp_path.iterdir())


class OtherServer:
    """A server that keeps its profile itself, as vLLM does, and notes what it is asked."""

    def __init__(self, stop_status: int = 200) -> None:
        self.asked: list[str] = []
        self._stop_status = stop_status
        routes = [
            Route("/v1/models", self._models),
            *(
                Route(path, self._note, methods=["POST"])
                for path in ("/start_profile", "/stop_profile")
            ),
            Route("/v1/completions", self._complete, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "other"}]})

    async def _note(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        is_stop = request.url.path == "/stop_profile"
        return Response(status_code=self._stop_status if is_stop else 200)

    async def _complete(self, request: Request) -> Response:
        self.asked.append(request.url.path)

        async def events() -> AsyncIterator[str]:
            yield 'data: {"choices": [{"text": "a"}]}\n\n'
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


@contextmanager
def serving(other: OtherServer) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(other.app, port=0, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (200, "profile: the server keeps it"),
        (500, "failed: --profile: POST /stop_profile: status 500"),
    ],
)
def test_a_server_that_keeps_its_profile_is_told_when_to_start_and_to_stop(
    status: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = OtherServer(status)
    with serving(other) as url:
        assert bench(url, tmp_path) == (0 if status == 200 else 1)
    measured = ["/v1/completions"] * 3
    assert other.asked == ["/start_profile", *measured, "/stop_profile"]
    out = capsys.readouterr().out
    assert line in out and "Successful requests:                     3" in out
    assert not list(tmp_path.iterdir())
