"""The client against real servers, small ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_load import completion_body, run, server
from workloads import uniform

SERVER = """
import argparse, json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        made = body["max_tokens"] - (self.path == "/one-less")
        self.send_response(500 if self.path == "/broken" else 200)
        self.end_headers()
        for number in range(made):
            self.wfile.write(b'data: {"choices": [{"text": "x"}]}\\n\\n')
        if self.path != "/cut":
            usage = json.dumps({"usage": {"completion_tokens": made}})
            self.wfile.write(f"data: {usage}\\n\\ndata: [DONE]\\n\\n".encode())

    def log_message(self, *args):
        pass

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()
"""
REQUESTS = uniform(4, 8, 3)
BODIES = [completion_body("model", request) for request in REQUESTS]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program: Path = tmp_path_factory.mktemp("server") / "server.py"
    program.write_text(SERVER)
    with server([sys.executable, program]) as port:
        yield port


def test_all_answers_are_awaited_and_the_clients_own_cpu_is_counted(port: int) -> None:
    load = run(port, "/v1/completions", REQUESTS, BODIES)

    assert load.seconds > 0
    assert load.client_cpu_seconds > 0


@pytest.mark.parametrize("path", ["/one-less", "/cut"])
def test_an_answer_with_too_few_tokens_is_no_measurement(port: int, path: str) -> None:
    with pytest.raises(RuntimeError, match="3 tokens wanted"):
        run(port, path, REQUESTS, BODIES)


def test_a_refusal_is_no_measurement(port: int) -> None:
    with pytest.raises(RuntimeError, match="500"):
        run(port, "/broken", REQUESTS, BODIES)


def test_a_server_that_ends_at_once_is_not_waited_for() -> None:
    with (
        pytest.raises(RuntimeError, match="did not start"),
        server([sys.executable, "-c", "raise SystemExit(3)"]),
    ):
        raise AssertionError
