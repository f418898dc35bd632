"""A request that the server ends early is an error, never a made-up `finish_reason`."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from .serving import Served, SteeredExecutor, serve_engine, toy_engine
from .test_answers import ASK, events_of, expected
from .test_errors import MESSAGES, check_error

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": ASK | {"max_tokens": 900},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 900},
}


def ask_in_threads(served: Served, **fields: Any) -> tuple[list[threading.Thread], dict[str, Any]]:
    """One request to each route, and the answers by path when the threads have ended."""
    answers: dict[str, httpx.Response] = {}

    def ask(path: str) -> None:
        with served.client() as http:
            answers[path] = http.post(path, json=ROUTES[path] | fields)

    threads = [threading.Thread(target=ask, args=(path,)) for path in ROUTES]
    for thread in threads:
        thread.start()
    return threads, answers


@pytest.mark.parametrize("is_streamed", [False, True])
def test_what_a_drain_cuts_off_is_the_same_error_on_all_routes(is_streamed: bool) -> None:
    with serve_engine(toy_engine(SteeredExecutor(step_seconds=0.01))) as served:
        threads, answers = ask_in_threads(served, stream=is_streamed)
        served.wait_until(lambda load: load["num_running"] == len(ROUTES))
        served.run(served.engine.drain(0.05))
        for thread in threads:
            thread.join()
        with served.client() as http:
            refusals = [http.post(path, json=body) for path, body in ROUTES.items()]
            refusals.append(http.get("/ready"))
    errors = [check_error(refused, 503) for refused in refusals]
    assert errors == [errors[0]] * 3
    for answer in answers.values():
        if is_streamed:
            error = events_of(answer)[-1]["error"]
        else:
            error = check_error(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
        assert (error["code"], error["type"]) == (errors[0]["code"], errors[0]["type"])


def test_a_request_that_takes_too_long_is_504_or_an_error_event() -> None:
    engine = toy_engine(SteeredExecutor(step_seconds=0.01), request_timeout=0.3)
    with serve_engine(engine) as served, served.client() as http:
        for path, body in ROUTES.items():
            error = check_error(http.post(path, json=body), 504)
            assert error["code"] == "request_timeout" and "0.3 seconds" in error["message"]
            events = events_of(http.post(path, json=body | {"stream": True}))
            assert events[-1] == {"error": error}
            assert all(c["finish_reason"] is None for e in events[:-1] for c in e["choices"])
        served.wait_idle()


def test_the_text_before_a_time_out_is_sent() -> None:
    """In three seconds a token is computed on a busy machine, too."""
    engine = toy_engine(SteeredExecutor(step_seconds=0.01), request_timeout=3.0)
    with serve_engine(engine) as served, served.client() as http:
        body = ROUTES["/v1/completions"] | {"stream": True}
        *chunks, _ = events_of(http.post("/v1/completions", json=body))
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text and expected("abc", 900).startswith(text)


def test_a_request_that_a_plugin_aborts_is_503() -> None:
    executor = SteeredExecutor(step_seconds=0.01)
    with serve_engine(toy_engine(executor)) as served:
        threads, answers = ask_in_threads(served, request_id="mine")
        served.wait_until(lambda load: load["num_running"] == len(ROUTES))
        for prefix in ("cmpl", "chatcmpl"):
            served.run(served.engine.abort(f"{prefix}-mine"))
        for thread in threads:
            thread.join()
        assert {check_error(answer, 503)["code"] for answer in answers.values()} == {"aborted"}
