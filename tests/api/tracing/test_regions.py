"""A trace shows the regions of a native step, if the trace began before the step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import serve_engine
from tests.api.tracing.test_trace import ADMIN, KEY
from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill import AsyncEngine

NUM_TOKENS = 4
LAYER = ["q, k, v", "attention", "attention output", "feed-forward"]
Event = dict[str, Any]


def serving(folder: Path, dtype: str, **options: Any) -> Any:
    model = write_model(folder / "m", TARGET, 1)
    defaults = {"device": "cpu", "num_gpu_blocks_override": 64, "disable_log_stats": True}
    return serve_engine(AsyncEngine(str(model), dtype=dtype, **defaults, **options), admin_key=KEY)


def generate(http: httpx.Client) -> None:
    body = {"prompt": list(range(5, 25)), "max_tokens": NUM_TOKENS, "ignore_eos": True}
    assert http.post("/v1/completions", json=body).status_code == 200


def steps_on(trace: Event, track: str) -> list[list[Event]]:
    """The slices of the steps on a track, each followed by the slices within it."""
    events = trace["traceEvents"]
    [place] = [
        (e["pid"], e["tid"])
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"] == track and e["pid"] == 1
    ]
    found: list[list[Event]] = []
    for event in [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == place]:
        if "step" in event["args"]:
            found.append([event])
        else:
            found[-1].append(event)
    for whole, *inner in found:
        ended = whole["ts"]
        for event in inner:
            assert event["ts"] >= ended and event["dur"] >= 0
            ended = event["ts"] + event["dur"]
        assert ended <= whole["ts"] + whole["dur"]
    for before, after in pairwise(found):
        assert before[0]["ts"] + before[0]["dur"] <= after[0]["ts"]
    return found


def regions_of(step: Sequence[Event]) -> list[tuple[str, int | None]]:
    return [(event["name"], event["args"].get("layer")) for event in step[1:]]


def in_layers(*layers: int) -> list[tuple[str, int | None]]:
    return [(name, layer) for layer in layers for name in LAYER]


WHOLE_STEP = [("embedding", None), *in_layers(0, 1, 2), ("logits", None), ("sampling", None)]


def test_the_steps_since_a_trace_was_begun_show_their_regions(tmp_path: Path) -> None:
    with serving(tmp_path, "bfloat16") as served, served.client() as http:
        generate(http)
        since = http.post("/debug/trace?seconds=600", headers=ADMIN).json()["since"]
        generate(http)
        trace = http.get(f"/debug/trace?since={since!r}", headers=ADMIN).json()
        assert [regions_of(step) for step in steps_on(trace, "device")] == [WHOLE_STEP] * NUM_TOKENS
        past = http.get("/debug/trace?seconds=600", headers=ADMIN).json()
    found = [regions_of(step) for step in steps_on(past, "device")]
    assert found == [[]] * NUM_TOKENS + [WHOLE_STEP] * NUM_TOKENS


def test_a_profile_measures_until_it_is_stopped(tmp_path: Path) -> None:
    with serving(tmp_path, "bfloat16") as served, served.client() as http:
        assert http.post("/start_profile", headers=ADMIN).status_code == 200
        generate(http)
        trace = http.post("/stop_profile", headers=ADMIN).json()
        assert [regions_of(step) for step in steps_on(trace, "device")] == [WHOLE_STEP] * NUM_TOKENS
        generate(http)
        past = http.get("/debug/trace?seconds=600", headers=ADMIN).json()
    found = [regions_of(step) for step in steps_on(past, "device")]
    assert found == [WHOLE_STEP] * NUM_TOKENS + [[]] * NUM_TOKENS


def test_a_model_that_runs_layer_by_layer_has_no_regions(tmp_path: Path) -> None:
    with serving(tmp_path, "float32") as served, served.client() as http:
        assert http.post("/start_profile", headers=ADMIN).status_code == 200
        generate(http)
        trace = http.post("/stop_profile", headers=ADMIN).json()
    assert [regions_of(step) for step in steps_on(trace, "device")] == [[]] * NUM_TOKENS


@pytest.mark.check
@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_every_worker_shows_its_own_regions(tmp_path: Path, kind: str) -> None:
    sizes = {f"{kind}_parallel_size": 2}
    with serving(tmp_path, "bfloat16", **sizes) as served, served.client() as http:
        assert http.post("/start_profile", headers=ADMIN).status_code == 200
        generate(http)
        trace = http.post("/stop_profile", headers=ADMIN).json()
    found = [[regions_of(step) for step in steps_on(trace, f"worker {rank}")] for rank in (0, 1)]
    if kind == "tensor":
        assert found == [[WHOLE_STEP] * NUM_TOKENS] * 2
    else:
        layers = [layer for _, layer in (*found[0][0], *found[1][0]) if layer is not None]
        assert layers == [layer for layer in range(3) for _ in LAYER]
        assert found[0][0][0] == ("embedding", None) and found[1][0][-1] == ("sampling", None)
    assert [regions_of(step) for step in steps_on(trace, "device")] == [[]] * NUM_TOKENS
