"""Several engine processes behind one port: what clients see, with and without failures."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.core.log import event_fields
from tokenmill.core.processes.place import Place

from .serving import PATIENCE, Served, serve_engine
from .test_errors import check_error
from .toy_process import LEAVES, LOAD_SECONDS, toy_process

NUM_REPLICAS = 2
ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 4}
LONG: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True, "seed": 5}
ADMIN = {"Authorization": "Bearer sk-admin"}


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    engine = toy_process(
        stall_timeout=1.0, max_restarts=100, places=(Place(),) * NUM_REPLICAS, router="session"
    )
    with serve_engine(engine, admin_key="sk-admin") as served:
        yield served


@pytest.fixture
def served(toy: Served) -> Served:
    """All replicas serve, and have no request."""
    wait_until_all_serve(toy)
    toy.wait_idle()
    return toy


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def pid_of(served: Served, replica: int) -> int:
    return int(served.engine.running.replicas.supervisors[replica].link.pid)


class RecordedEvents(logging.Handler):
    """The log events of this process, each with its fields and those of its context."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.getMessage(), event_fields(record)))


@contextmanager
def recorded_events() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    handler, logger = RecordedEvents(), logging.getLogger("tokenmill")
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)


def running(load: Any) -> list[int]:
    return [replica["num_running"] for replica in load["replicas"]]


def by_engine(http: httpx.Client, name: str) -> dict[str, float]:
    families = text_string_to_metric_families(http.get("/metrics").text)
    found = [s for family in families for s in family.samples if s.name == f"tokenmill:{name}"]
    return {sample.labels["engine"]: sample.value for sample in found}


def wait_until_all_serve(served: Served) -> None:
    served.wait_until(lambda load: all(replica["is_alive"] for replica in load["replicas"]))


class Asking:
    """Requests for whole answers at the same time, each in a thread."""

    def __init__(self, served: Served, *prompts: str, **fields: Any) -> None:
        self.answers: dict[str, httpx.Response] = {}
        self._served = served
        self._fields = LONG | fields
        self._threads = [threading.Thread(target=self._ask, args=(p,)) for p in prompts]
        for thread in self._threads:
            thread.start()

    def _ask(self, prompt: str) -> None:
        with self._served.client() as http:
            body = self._fields | {"prompt": prompt}
            self.answers[prompt] = http.post("/v1/completions", json=body)

    def join(self) -> dict[str, httpx.Response]:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a request hangs"
        return self.answers


def texts(answers: dict[str, httpx.Response]) -> dict[str, str]:
    return {prompt: answer.json()["choices"][0]["text"] for prompt, answer in answers.items()}


def test_requests_are_spread_and_load_and_metrics_tell_the_replicas_apart(
    served: Served, http: httpx.Client
) -> None:
    before = by_engine(http, "generation_tokens_total")
    asking = Asking(served, "one", "two", "three", "four", max_tokens=400)
    served.wait_until(lambda load: running(load) == [2, 2] and load["num_running"] == 4)
    state = http.get("/debug/state", headers=ADMIN).json()
    assert sorted(request["engine"] for request in state["requests"]) == [0, 0, 1, 1]
    assert {answer.status_code for answer in asking.join().values()} == {200}
    after = by_engine(http, "generation_tokens_total")
    assert {engine: after[engine] - before.get(engine, 0) for engine in after} == {
        "0": 800.0,
        "1": 800.0,
    }


def test_two_requests_with_one_id_get_different_ids(served: Served, http: httpx.Client) -> None:
    asking = Asking(served, "one", "two", max_tokens=400, request_id="same")
    served.wait_until(lambda load: running(load) == [1, 1])
    requests = http.get("/debug/state", headers=ADMIN).json()["requests"]
    ids = {request["request_id"] for request in requests}
    assert len(ids) == 2 and all(name.startswith("cmpl-same") for name in ids)
    assert ids == {answer.json()["id"] for answer in asking.join().values()}


def test_a_session_of_a_client_stays_on_one_replica(http: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "user": "x"}
    replicas = []
    for name in (f"client {number}" for number in range(4)):
        for path, body, headers in (
            ("/v1/completions", ASK | {"user": name}, {}),
            ("/v1/chat/completions", chat | {"prompt_cache_key": name}, {}),
            ("/v1/completions", ASK | {"user": "x"}, {"X-Session-ID": name}),
        ):
            before = by_engine(http, "generation_tokens_total")
            assert http.post(path, json=body, headers=headers).status_code == 200
            after = by_engine(http, "generation_tokens_total")
            replicas.append(next(e for e in after if after[e] > before.get(e, 0)))
    assert replicas[::3] == replicas[1::3] == replicas[2::3]
    assert set(replicas) == {"0", "1"}


def test_a_lost_replica_s_requests_are_answered_by_the_other_but_not_streams_that_have_begun(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [f"{number} says" for number in range(3)]
    expected = texts(Asking(served, *prompts).join())
    restarts = by_engine(http, "engine_restarts_total")
    lost = by_engine(http, "engine_lost_requests_total")
    monkeypatch.setenv(LOAD_SECONDS, "1.5")
    body = LONG | {"prompt": "tell", "max_tokens": 1000, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as reply:
        lines = (line for line in reply.iter_lines() if line)
        assert '"text"' in next(lines)
        asking = Asking(served, *prompts)
        served.wait_until(lambda load: running(load) == [2, 2])
        with served.client() as other:
            requests = other.get("/debug/state", headers=ADMIN).json()["requests"]
        victim = next(one["engine"] for one in requests if one["num_prompt_tokens"] == 4)
        pid = pid_of(served, victim)
        os.kill(pid, signal.SIGKILL)
        error, done = list(lines)[-2:]
    assert '"code":"stopped"' in error and done == "data: [DONE]"
    served.wait_until(lambda load: load["replicas"][victim]["is_restarting"])
    for path in ("/ready", "/health"):
        assert http.get(path).status_code == 200, "the other one serves"
    assert not http.get("/load").json()["is_restarting"]
    assert by_engine(http, "engine_up")[str(victim)] == 0.0
    assert texts(asking.join()) == expected
    wait_until_all_serve(served)
    assert pid_of(served, victim) != pid and not os.path.exists(f"/proc/{pid}")
    after = by_engine(http, "engine_restarts_total")
    assert after == restarts | {str(victim): restarts[str(victim)] + 1}
    after = by_engine(http, "engine_lost_requests_total")
    assert after == lost | {str(victim): lost[str(victim)] + 1}, "the stream that had begun"


def test_a_poisonous_request_ends_two_engines_and_is_refused_by_all_from_then_on(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOAD_SECONDS, "1")
    poison = ASK | {"prompt": "E"}  # loses the device; kills are tested above
    check_error(http.post("/v1/completions", json=poison), 503)
    served.wait_until(lambda load: load["is_restarting"])
    assert check_error(http.get("/ready"), 503)["code"] == "restarting"
    assert check_error(http.post("/v1/completions", json=ASK), 503)["code"] == "stopped"
    wait_until_all_serve(served)
    for _ in range(2 * NUM_REPLICAS):
        assert "crashed" in check_error(http.post("/v1/completions", json=poison), 400)["message"]
        assert http.post("/v1/completions", json=ASK).status_code == 200


def test_a_third_engine_does_not_try_a_request_that_ended_one_in_a_step_and_one_before() -> None:
    places = (Place(), Place(environment={LEAVES: "1"}), Place())
    engine = toy_process(max_restarts=0, places=places, router="round-robin")
    with serve_engine(engine) as served, served.client() as http:
        body = ASK | {"prompt": "K", "user": "leave there"}
        check_error(http.post("/v1/completions", json=body), 503)
        replicas = http.get("/load").json()["replicas"]
        assert [replica["is_alive"] for replica in replicas] == [False, False, True]


def test_a_request_for_which_a_replica_has_no_room_goes_to_another_one() -> None:
    """The session's replica has room for three of four, and for two before its first step."""
    engine = toy_process(
        places=(Place(),) * 2, router="session", max_num_seqs=1, max_num_queued_reqs=2
    )
    with serve_engine(engine) as served:
        asking = Asking(served, "one", "two", "three", "four", max_tokens=400, user="the same")
        answers = asking.join().values()
    assert [answer.status_code for answer in answers] == [200] * 4


def test_a_replica_that_is_given_up_leaves_the_others_serving_until_the_end() -> None:
    cpus = sorted(getattr(os, "sched_getaffinity", lambda _: {0})(0))
    places = (Place(cpus=(cpus[0],)), Place(cpus=(cpus[-1],)))
    engine = toy_process(max_restarts=0, places=places)
    with recorded_events() as events, serve_engine(engine) as served, served.client() as http:
        pid = pid_of(served, 1)
        if hasattr(os, "sched_getaffinity"):
            assert os.sched_getaffinity(pid) == {cpus[-1]}
        os.kill(pid_of(served, 0), signal.SIGKILL)
        served.run(served.engine.running.replicas.supervisors[0].given_up.wait())
        assert [fields["engine"] for name, fields in events if name == "engine_given_up"] == [0]
        assert served.engine.running.replicas.failure is None
        assert http.get("/ready").status_code == 200
        asking = Asking(served, "one", "two", max_tokens=800)
        served.wait_until(lambda load: running(load) == [0, 2])
        served.run(served.engine.drain(0.05))
        for answer in asking.join().values():
            assert check_error(answer, 503)["code"] == "stopped"
    assert not os.path.exists(f"/proc/{pid}")


def test_a_plugin_knows_its_replica_also_after_a_restart(
    served: Served, http: httpx.Client
) -> None:
    def shown() -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(http.get("/metrics").text)
        samples = [one for family in families for one in family.samples]
        return {
            (one.labels["engine"], one.name.rpartition("_")[2]): one.value
            for one in samples
            if "FaultyPlugin" in one.name and "engine" in one.labels
        }

    own = {("0", "index"): 0.0, ("1", "index"): 1.0, ("0", "count"): 2.0, ("1", "count"): 2.0}
    assert shown() == own
    os.kill(pid_of(served, 1), signal.SIGKILL)
    served.wait_until(lambda load: load["replicas"][1]["is_restarting"])
    wait_until_all_serve(served)
    assert shown() == own
