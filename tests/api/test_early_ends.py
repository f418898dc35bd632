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


LIMITED: dict[str, dict[str, Any]] = ROUTES | {
    "/v1/responses": {"input": "hi", "max_output_tokens": 900},
    "/v1/messages": {"model": "simulated", "messages": MESSAGES, "max_tokens": 900},
    "/v1/embeddings": {"input": "a" * 900},
}


@pytest.mark.parametrize("is_in_header", [False, True])
@pytest.mark.parametrize("path", LIMITED)
def test_a_request_ends_at_its_own_time_limit_while_others_go_on(
    path: str, is_in_header: bool
) -> None:
    executor = SteeredExecutor()
    headers = {"X-Request-Timeout": "0.2"} if is_in_header else {}
    body = LIMITED[path] | ({} if is_in_header else {"request_timeout": 0.2})
    kinds = [False] if path == "/v1/embeddings" else [False, True]
    answers: list[httpx.Response] = []
    with serve_engine(toy_engine(executor)) as served:
        with served.client() as http:
            assert http.post("/v1/completions", json=ASK).status_code == 200
            executor.step_seconds = 0.3
            other = threading.Thread(
                target=lambda: answers.append(http.post("/v1/completions", json=ASK))
            )
            other.start()
            for is_streamed in kinds:
                sent = body | ({"stream": True} if is_streamed else {})
                answer = http.post(path, json=sent, headers=headers)
                assert answer.status_code == (200 if is_streamed else 504), answer.text
                assert "took longer than its request_timeout" in answer.text
                assert "--request-timeout" not in answer.text
            other.join()
        served.wait_idle()
    assert answers[0].status_code == 200


def test_a_request_that_waits_ends_at_its_time_limit() -> None:
    executor = SteeredExecutor(step_seconds=0.01)
    engine = toy_engine(executor, max_num_seqs=1)
    with serve_engine(engine) as served:
        threads, answers = ask_in_threads(served, max_tokens=300)  # three seconds each
        served.wait_until(lambda load: (load["num_running"], load["num_waiting"]) == (1, 1))
        with served.client() as http:
            refused = http.post("/v1/completions", json=ASK | {"request_timeout": 0.1})
            assert check_error(refused, 504)["code"] == "request_timeout"
        executor.step_seconds = 0.0
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers.values()] == [200, 200]
        served.wait_idle()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "3s", ""])
def test_a_wrong_time_limit_is_refused_by_its_name(text: str, http: httpx.Client) -> None:
    headers = {"X-Request-Timeout": text}
    error = check_error(http.post("/v1/completions", json=ASK, headers=headers), 400)
    assert error["param"] == "X-Request-Timeout" and repr(text) in error["message"]


def test_the_smaller_of_both_time_limits_holds(http: httpx.Client) -> None:
    headers = {"X-Request-Timeout": "0.000001"}
    body = ASK | {"request_timeout": 600}
    assert http.post("/v1/completions", json=body, headers=headers).status_code == 504
    body = ASK | {"request_timeout": 0.000001}
    headers = {"X-Request-Timeout": "600"}
    assert http.post("/v1/completions", json=body, headers=headers).status_code == 504


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
