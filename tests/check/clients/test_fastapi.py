"""The engine in a FastAPI application, as examples/fastapi_app.py shows it, under uvicorn."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from .environments import client_environment, python_with

EXAMPLES = Path(__file__).parents[3] / "examples"
SERVE = f"""
import site
site.addsitedir({sysconfig.get_path("purelib")!r})  # tokenmill, behind FastAPI's own packages
from uvicorn.main import main
main()
"""
URL = re.compile(r"Uvicorn running on (http://\S+)")
START_SECONDS = 120
END_SECONDS = 60


@contextlib.contextmanager
def fastapi_app(log: Path) -> Iterator[str]:
    """The address of the application. Like Ctrl-C, the end of the block lets it close its engine,
    and waits for that."""
    python = python_with("fastapi>=0.120,<1", "uvicorn>=0.34")
    command = [str(python), "-c", SERVE, "--app-dir", str(EXAMPLES), "--port", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "fastapi_app:app"], stdout=out, stderr=out, env=client_environment()
        )
    try:
        yield _address(process, log)
        process.send_signal(signal.SIGINT)
        process.wait(END_SECONDS)
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + START_SECONDS
    while (found := URL.search(log.read_text())) is None:
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return found.group(1)


def test_a_fastapi_application_has_the_engine_in_a_route_and_its_api_under_a_prefix(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with fastapi_app(log) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        with http.stream("GET", "/ask", params={"question": "What is the capital of Japan?"}) as it:
            pieces = list(it.iter_text())
        assert "Tokyo" in "".join(pieces)
        assert len(pieces) > 1, "it streams"
        assert http.get("/llm/health").status_code == 200
        assert http.get("/llm/v1/models").status_code == 401
        key = {"Authorization": "Bearer secret"}
        [model] = http.get("/llm/v1/models", headers=key).json()["data"]
        assert model["id"]
        assert "/ask" in http.get("/openapi.json").json()["paths"]
    assert "Application shutdown complete" in log.read_text()
