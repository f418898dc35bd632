"""Health, readiness, metrics, tokens, plugins and the OpenAPI document."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from prometheus_client.parser import text_string_to_metric_families

from tokenmill import __version__
from tokenmill.api import operations
from tokenmill.api.app import ROUTES
from tokenmill.api.openai.reading.bodies import ChatBody, CompletionBody
from tokenmill.core.errors import DeviceError

from .serving import Served, SteeredExecutor, serve_engine, toy_engine
from .test_errors import check_error
from .test_overload import ask_in_thread

ASK = {"prompt": "abc", "max_tokens": 4}


def samples(http: httpx.Client) -> dict[str, float]:
    text = http.get("/metrics").text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_an_idle_server_is_healthy_and_ready(http: httpx.Client) -> None:
    for path in ("/health", "/ready", "/ping"):
        response = http.get(path)
        assert (response.status_code, response.content) == (200, b"")
    assert http.post("/ping").status_code == 200


def test_work_without_a_step_for_long_is_unhealthy_until_one_completes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = SteeredExecutor()
    with (
        serve_engine(toy_engine(executor), stall_timeout=0.05) as served,
        served.client() as http,
    ):
        time.sleep(0.2)
        assert http.get("/health").status_code == 200, "idle is healthy"
        http.post("/v1/completions", json=ASK)  # tells how long a step takes
        executor.gate.clear()
        asking = ask_in_thread(served, [])
        served.wait_until(
            lambda load: load["stalled_for"] > max(0.1, 20 * load["expected_step_seconds"])
        )
        assert http.get("/health").status_code == 200, "no reason yet to restart the server"
        monkeypatch.setattr(operations, "UNHEALTHY_SECONDS", 0.05)
        assert check_error(http.get("/health"), 503)["code"] == "stalled"
        assert check_error(http.get("/ready"), 503)["code"] == "stalled"
        executor.gate.set()
        asking.join()
        served.wait_idle()
        assert http.get("/health").status_code == 200
        assert http.get("/ready").status_code == 200


def test_a_server_of_slow_steps_is_given_ten_of_them() -> None:
    executor = SteeredExecutor(step_seconds=0.5)
    with (
        serve_engine(toy_engine(executor), stall_timeout=0.05) as served,
        served.client() as http,
    ):
        http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1})
        assert http.get("/load").json()["expected_step_seconds"] >= 0.5
        executor.gate.clear()
        asking = ask_in_thread(served, [])
        served.wait_until(lambda load: load["stalled_for"] > 0.6)
        assert http.get("/ready").status_code == 200
        executor.gate.set()
        asking.join()
        served.wait_idle()


def test_after_a_device_error_everything_says_503() -> None:
    executor = SteeredExecutor()
    with serve_engine(toy_engine(executor)) as served, served.client() as http:
        executor.failure = DeviceError("CUDA error: an illegal memory access at 0x7f00")
        error = check_error(http.post("/v1/completions", json=ASK), 503)
        assert "0x7f" not in error["message"]
        assert check_error(http.get("/health"), 503)["code"] == "dead"
        check_error(http.get("/ready"), 503)
        response = http.post("/v1/completions", json=ASK)
        check_error(response, 503)
        assert int(response.headers["retry-after"]) >= 1
        assert http.get("/metrics").status_code == 200
        assert http.get("/load").json()["is_alive"] is False


def test_a_failed_step_ends_its_requests_with_500_and_the_next_one_works() -> None:
    executor = SteeredExecutor()
    with serve_engine(toy_engine(executor)) as served, served.client() as http:
        executor.failure = ValueError("secret /path/to/weights")
        error = check_error(http.post("/v1/completions", json=ASK), 500)
        assert "secret" not in error["message"]
        stream = http.post("/v1/completions", json=ASK | {"stream": True})
        assert stream.status_code == 200
        assert '"error"' in stream.text and stream.text.endswith("data: [DONE]\n\n")
        executor.failure = None
        assert http.post("/v1/completions", json=ASK).status_code == 200
        served.wait_idle()


def test_metrics_parse_and_count_what_was_asked(http: httpx.Client) -> None:
    before = samples(http)
    http.post("/v1/completions", json=ASK | {"n": 2})
    after = samples(http)
    assert (
        after["tokenmill:generation_tokens_total"]
        - before.get("tokenmill:generation_tokens_total", 0)
        == 8
    )
    assert after["tokenmill:num_requests_running"] == 0
    assert after["tokenmill:kv_cache_usage_perc"] == 0
    assert http.get("/metrics").headers["content-type"].startswith("text/plain")


def test_the_metrics_prefix_can_be_that_of_existing_dashboards() -> None:
    with (
        serve_engine(toy_engine(metrics_prefix="vllm:")) as served,
        served.client() as http,
    ):
        http.post("/v1/completions", json=ASK)
        found = samples(http)
    assert found["vllm:generation_tokens_total"] == 4
    assert not any(name.startswith("tokenmill:") for name in found)


def test_tokenize_and_detokenize_are_inverse(real: Served) -> None:
    with real.client() as http:
        for text in ("Hello, world!", "naïve 日本語 👍🏽", " two  spaces\n\ttab", ""):
            body = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
            found = http.post("/tokenize", json=body).json()
            assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
            assert found["max_model_len"] == real.engine.max_model_len
            back = http.post("/detokenize", json={"tokens": found["tokens"]}).json()
            assert back == {"prompt": text}
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
        tokens = http.post("/tokenize", json=chat).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        shorter = http.post("/tokenize", json=chat | {"add_generation_prompt": False}).json()
        assert tokens[: shorter["count"]] == shorter["tokens"] != tokens


def test_tokenize_gives_the_prompt_of_a_chat_with_the_same_fields(real: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    with real.client() as http:
        for fields in (
            {},
            {"add_generation_prompt": False},
            {"continue_final_message": True},
            {"continue_final_message": True, "chat_template_kwargs": {"thinking": True}},
        ):
            body = {"messages": messages, **fields}
            tokens = http.post("/tokenize", json=body).json()["tokens"]
            options = {"max_tokens": 1, "return_token_ids": True}
            answer = http.post("/v1/chat/completions", json=body | options).json()
            assert answer["prompt_token_ids"] == tokens
        both = {"continue_final_message": True, "add_generation_prompt": True}
        refused = http.post("/tokenize", json={"messages": messages} | both)
        check_error(refused, 400, "continue_final_message")


def test_tokenize_and_detokenize_refuse_what_is_wrong(http: httpx.Client) -> None:
    check_error(http.post("/tokenize", json={}), 400, "prompt")
    both = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    check_error(http.post("/tokenize", json=both), 400, "prompt")
    check_error(http.post("/tokenize", json={"prompt": "a" * 100_000}), 400)
    for tokens in ([-1], [1000], [2**70], ["a"], 5, None):
        check_error(http.post("/detokenize", json={"tokens": tokens}), 400, "tokens")


def test_a_client_can_render_the_model_s_chats_itself(real: Served) -> None:
    with real.client() as http:
        info = http.get("/tokenizer_info").json()
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        tokens = http.post("/tokenize", json=chat).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
        (end,) = http.post("/tokenize", json={"prompt": info["eos_token"]}).json()["tokens"]
    variables = {name: value for name, value in info.items() if name.endswith("_token")}
    template = ImmutableSandboxedEnvironment(trim_blocks=True).from_string(info["chat_template"])
    assert template.render(**chat, add_generation_prompt=True, **variables) == text
    assert end in real.engine.info.eos_token_ids
    assert info["model_max_length"] == real.engine.max_model_len and info["tokenizer_class"]


def test_plugins_are_listed_with_their_hooks(http: httpx.Client) -> None:
    http.post("/v1/completions", json=ASK)
    found = http.get("/plugins").json()
    by_name = {plugin["name"]: plugin for plugin in found["plugins"]}
    assert {"prefill-first", "chunked", "prometheus"} <= by_name.keys()
    [schedule] = [hook for hook in found["hooks"] if hook["hook"] == "schedule"]
    assert schedule["plugin"] == next(
        plugin["name"] for plugin in found["plugins"] if "scheduler:" in str(plugin["chosen"])
    )
    assert schedule["calls"] > 0 and schedule["seconds"] > 0 and schedule["failures"] == 0
    assert http.post("/plugins").status_code == 405


def test_the_openapi_document_has_every_field_and_every_reference_resolves(
    http: httpx.Client,
) -> None:
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for kind in (CompletionBody, ChatBody):
        known = {*kind.__struct_fields__, *kind.UNSUPPORTED}
        assert set(schemas[kind.__name__]["properties"]) == known
    assert {route.path.replace("{name:path}", "{name}") for route in ROUTES} == set(
        document["paths"]
    )
    check_references(document, document)
    assert "security" not in document and "securitySchemes" not in document["components"]


def test_the_openapi_document_of_a_strict_server_with_keys_says_so() -> None:
    with (
        serve_engine(toy_engine(), api_keys=("k",), strict_fields=True) as served,
        served.client(headers={"Authorization": "Bearer k"}) as http,
    ):
        document = http.get("/openapi.json").json()
    assert document["security"] == [{"key": []}, {"x-api-key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in document["paths"]["/v1/models"]["get"]
    schemas = document["components"]["schemas"]
    for name in ("CompletionBody", "ChatBody"):
        assert "model" in schemas[name]["required"]
        assert schemas[name]["properties"]["model"] == {"type": "string", "maxLength": 256}
    for name in ("CompletionBody", "ChatBody", "ChatMessageBody", "StreamOptions", "TokenizeBody"):
        assert schemas[name]["additionalProperties"] is False
    check_references(document, document)


def check_references(value: Any, document: Any) -> None:
    if isinstance(value, list):
        for item in value:
            check_references(item, document)
    elif isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            found = document
            for key in reference.removeprefix("#/").split("/"):
                found = found[key]
        for item in value.values():
            check_references(item, document)


def test_version_index_and_the_model_s_card(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": __version__}
    assert "/v1/chat/completions" in http.get("/").text
    (card,) = http.get("/v1/models").json()["data"]
    assert card["id"] == "simulated" and card["max_model_len"] == 1024
    assert http.get("/v1/models/simulated").json() == card
    assert http.get("/v1/models/").json() == http.get("/v1/models").json()
    assert http.head("/v1/models").status_code == 200


def test_a_model_with_several_names_answers_to_each_and_signs_with_the_first() -> None:
    engine = toy_engine(served_model_name="first")
    settings = {"model_aliases": ("second", "a/third")}
    with serve_engine(engine, **settings) as served, served.client() as http:
        names = [card["id"] for card in http.get("/v1/models").json()["data"]]
        assert names == ["first", "second", "a/third"]
        for name in names:
            assert http.get(f"/v1/models/{name}").json()["id"] == name
            answer = http.post("/v1/completions", json=ASK | {"model": name})
            assert answer.json()["model"] == "first"
        unknown = http.post("/v1/completions", json=ASK | {"model": "simulated"})
        assert "'second'" in check_error(unknown, 404, "model")["message"]
        assert 'model_name="first"' in http.get("/metrics").text


@pytest.mark.parametrize("given", ["abc-1", "ü/日" * 3, "x" * 1000, "a b;c", "a/0"])
def test_the_answer_s_id_has_the_request_s(http: httpx.Client, given: str) -> None:
    headers = {"X-Request-Id": given.encode()}
    for _ in range(2):
        answer = http.post("/v1/completions", json=ASK | {"n": 2}, headers=headers)
        assert answer.status_code == 200
        assert answer.json()["id"] == "cmpl-" + given.encode().decode("latin-1")[:256]
    named = http.post("/v1/completions", json=ASK | {"request_id": given[:256]})
    assert named.json()["id"] == "cmpl-" + given[:256]
