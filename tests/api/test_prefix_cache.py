"""The route that empties the prefix cache."""

from __future__ import annotations

import httpx
import pytest

from tests.api.serving import serve_engine, toy_engine
from tests.api.toy_process import toy_process
from tokenmill.core.processes.place import Place
from tokenmill.core.supervised.supervisor import EngineSupervisor

ADMIN = {"Authorization": "Bearer sk-admin"}
PROMPT = "a prompt of several blocks"
NUM_CACHED = 24
"""Its tokens in full blocks of 4, without the last token."""


def num_cached(http: httpx.Client) -> int:
    answer = http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize("num_engines", [1, 2])
def test_after_a_reset_every_engine_computes_a_known_prompt_again(num_engines: int) -> None:
    places = (Place(),) * num_engines
    engine = toy_engine() if num_engines == 1 else toy_process(places=places, router="round-robin")
    with serve_engine(engine, admin_key="sk-admin") as served, served.client() as http:
        found = [num_cached(http) for _ in range(2 * num_engines)]
        assert found == [0] * num_engines + [NUM_CACHED] * num_engines
        assert http.post("/reset_prefix_cache").status_code == 401
        assert http.post("/reset_prefix_cache", headers=ADMIN).status_code == 200
        assert [num_cached(http) for _ in range(2 * num_engines)] == found


def test_a_router_that_remembers_prompts_forgets_them_with_the_cache() -> None:
    engine = toy_process(places=(Place(),) * 2, router="prefix-aware")
    with serve_engine(engine, admin_key="sk-admin") as served, served.client() as http:
        num_cached(http)
        router = engine.running._sender.router._router  # type: ignore[attr-defined]
        assert any(router._sent.values())
        assert http.post("/reset_prefix_cache", headers=ADMIN).status_code == 200
        assert not any(router._sent.values())


def test_without_an_engine_that_answers_it_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_process(places=(Place(),))
    with serve_engine(engine, admin_key="sk-admin") as served, served.client() as http:
        monkeypatch.setattr(EngineSupervisor, "ready_link", None)
        answer = http.post("/reset_prefix_cache", headers=ADMIN)
        assert answer.status_code == 503 and "no engine answers" in answer.text


def test_running_requests_cannot_be_reset() -> None:
    with serve_engine(toy_engine(), admin_key="sk-admin") as served, served.client() as http:
        url = "/reset_prefix_cache?reset_running_requests=true"
        answer = http.post(url, headers=ADMIN)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "reset_running_requests"
