"""Ray Serve on two machines: fronts and replicas that come, go and are lost, under open streams."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.api.test_traces import PARENT, TRACE, Collector, collecting, values
from tests.check.ray.machines import HEAD, OTHER

EXAMPLE = Path(__file__).parents[4] / "examples" / "ray" / "serve.yaml"
FRONTS = (f"http://{HEAD}:8000", f"http://{OTHER}:8000")
URL = FRONTS[0]
PATIENCE = 300.0
FAST = {"upscale_delay_s": 1, "downscale_delay_s": 3, "metrics_interval_s": 0.5}
LOST = '"code":"stopped"'


def wait_for(is_reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_reached():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Reached from both machines."""
    with collecting(HEAD) as found:
        yield found


class Served:
    """The application of the example, with a tiny model. Replicas reserve no CPU."""

    def __init__(self, folder: Path, args: dict[str, Any]) -> None:
        self._file = folder / "serve.yaml"
        self._config = yaml.safe_load(EXAMPLE.read_text())
        self._config["http_options"]["host"] = "0.0.0.0"
        self._app = self._config["applications"][0]
        self._app["args"] = args
        [self._replica] = self._app["deployments"]
        self._replica["ray_actor_options"] = {"num_cpus": 0}
        self._scaling = self._replica["autoscaling_config"] | FAST

    def deploy(self, *, least: int, most: int, **args: object) -> None:
        """Deploy with this number of replicas. `args`: changes of the arguments."""
        self._app["args"] |= args
        scaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": 4}
        self._replica["autoscaling_config"] = self._scaling | scaling
        self._file.write_text(yaml.safe_dump(self._config))
        command = [sys.executable, "-m", "ray.serve.scripts", "deploy", str(self._file)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def wait_for_replicas(self, is_reached: Callable[[set[str]], bool]) -> None:
        wait_for(lambda: is_reached(engines()))


def engines(url: str = URL) -> set[str]:
    """The replicas whose metrics a front shows."""
    try:
        text = httpx.get(f"{url}/metrics", timeout=PATIENCE).text
    except httpx.HTTPError:
        return set()
    return set(re.findall(r'num_requests_running\{engine="(\w+)"', text))


@pytest.fixture(scope="module")
def served(
    model: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Served]:
    args = {"model": str(model), "device": "cpu", "scheduling_policy": "priority"}
    args |= {"otlp_traces_endpoint": collector.url, "max_num_seqs": 32}
    yield Served(tmp_path_factory.mktemp("serve"), args)
    command = [sys.executable, "-m", "ray.serve.scripts", "shutdown", "-y"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


class Streams:
    """Open streams. `ends`: the last two events of those that have ended."""

    def __init__(self, count: int, max_tokens: int) -> None:
        self.ends: list[list[str]] = []
        self.num_begun = 0
        self._is_over = threading.Event()
        self._body = {"max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        asked = (threading.Thread(target=self._ask, args=(number,)) for number in range(count))
        self._threads = list(asked)
        for thread in self._threads:
            thread.start()
        wait_for(lambda: self.num_begun == count)

    def _ask(self, number: int) -> None:
        body = self._body | {"prompt": [number % 100 + 1, number // 100 + 1] * 4}
        url, events = f"{URL}/v1/completions", list[str]()
        with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if not events:
                    self.num_begun += 1
                if line:
                    events = [*events[-1:], line]
                if self._is_over.is_set():
                    return
        self.ends.append(events)

    def leave(self) -> None:
        self._is_over.set()
        self.join()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a stream hangs"


def test_24_streams_run_together_on_one_replica(served: Served) -> None:
    served.deploy(least=1, most=1)
    served.wait_for_replicas(lambda found: len(found) == 1)
    streams = Streams(24, max_tokens=4000)
    assert not streams.ends, "24 streams were open at the same time"
    assert httpx.get(f"{URL}/health", timeout=PATIENCE).status_code == 200
    streams.leave()


@pytest.mark.soak
def test_the_number_of_replicas_follows_the_load(served: Served) -> None:
    served.deploy(least=1, most=3)
    streams = Streams(24, max_tokens=4000)
    served.wait_for_replicas(lambda found: len(found) == 3)
    assert all(engines(url) == engines() for url in FRONTS)
    streams.leave()
    served.wait_for_replicas(lambda found: len(found) == 1)


@pytest.mark.soak
@pytest.mark.parametrize(("count", "max_tokens"), [(24, 4000), (200, 2000)])
def test_an_update_cuts_no_stream(served: Served, count: int, max_tokens: int) -> None:
    served.deploy(least=2, most=2, max_num_seqs=count)
    served.wait_for_replicas(lambda found: len(found) == 2)
    old, streams = engines(), Streams(count, max_tokens=max_tokens)
    served.deploy(least=2, most=2, max_num_seqs=count + 1)
    served.wait_for_replicas(lambda found: found != old)  # one gets no more requests
    num_open = count - len(streams.ends)
    streams.join()
    assert num_open, "the streams ended before the update began"
    assert len(streams.ends) == count
    for event, end in streams.ends:
        assert json.loads(event.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert end == "data: [DONE]"
    served.wait_for_replicas(lambda found: len(found) == 2 and not found & old)


def processes(name: str) -> Sequence[psutil.Process]:
    """The processes of Ray's actors, on both machines."""
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if (one.info["cmdline"] or [""])[0].startswith(f"ray::{name}")]


@pytest.mark.parametrize(
    ("count", "max_tokens"), [(16, 4000), pytest.param(200, 2000, marks=pytest.mark.soak)]
)
def test_a_lost_replica_ends_its_streams_with_an_error_and_takes_no_other_request(
    served: Served, count: int, max_tokens: int
) -> None:
    served.deploy(least=2, most=2, max_num_seqs=2 * count)
    served.wait_for_replicas(lambda found: len(found) == 2)
    streams = Streams(count, max_tokens=max_tokens)
    processes("ServeReplica")[0].kill()
    for first in range(101, 109):
        body = {"prompt": [first] * 8, "max_tokens": 2}
        answer = httpx.post(f"{URL}/v1/completions", json=body, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
    streams.join()
    cut = [events for events in streams.ends if events[-1:] != ["data: [DONE]"]]
    assert not cut, cut[:5]
    assert 0 < sum(LOST in event for event, _ in streams.ends) < count
    served.wait_for_replicas(lambda found: len(found) == 2)


@pytest.mark.soak
def test_a_lost_front_is_replaced_while_the_other_one_serves(served: Served) -> None:
    served.deploy(least=2, most=2)
    served.wait_for_replicas(lambda found: len(found) == 2)
    wait_for(lambda: all(len(engines(url)) == 2 for url in FRONTS))
    processes("ProxyActor")[0].kill()
    answers = [len(engines(url)) for url in FRONTS]
    assert 2 in answers, "one front serves"
    wait_for(lambda: all(len(engines(url)) == 2 for url in FRONTS))


@pytest.mark.soak
def test_equal_beginnings_go_to_one_replica(served: Served) -> None:
    served.deploy(least=2, most=2)
    served.wait_for_replicas(lambda found: len(found) == 2)
    cached: list[int] = []  # tokens of each repeated prompt that its replica knew
    for first in range(1, 13):
        body = {"prompt": [first] * 400, "max_tokens": 1}
        usages = [
            httpx.post(f"{URL}/v1/completions", json=body, timeout=PATIENCE).json()["usage"]
            for _ in range(3)
        ]
        new, *repeated = [one["prompt_tokens_details"]["cached_tokens"] for one in usages]
        assert new == 0
        cached += repeated
    # Chance would know 15 of 24. A replica that tells its load too late is passed over by Serve.
    assert sum(one > 300 for one in cached) >= 21, cached


def test_id_trace_and_priority_pass_through_the_front_to_the_replicas(
    served: Served, collector: Collector
) -> None:
    served.deploy(least=2, most=2)
    served.wait_for_replicas(lambda found: len(found) == 2)
    headers = {"X-Request-Id": "abc", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    for first in range(21, 29):  # some go to each replica
        body = {"prompt": [first] * 400, "max_tokens": 1, "priority": first}
        answer = httpx.post(f"{URL}/v1/completions", json=body, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        assert answer.headers.get_list("x-request-id") == ["abc"]
    wrong = httpx.post(f"{URL}/v1/completions", json=body | {"priority": "first"}, timeout=PATIENCE)
    assert wrong.status_code == 400 and "priority" in wrong.text
    end = time.monotonic() + PATIENCE
    while len(found := [one for one in collector.spans if one.trace_id.hex() == TRACE]) < 8:
        assert time.monotonic() < end, f"only {len(found)} spans"
        time.sleep(0.1)  # replicas send them in batches
    assert {span.parent_span_id.hex() for span in found} == {PARENT}
    assert {values(span)["gen_ai.request.id"] for span in found} == {"cmpl-abc"}
