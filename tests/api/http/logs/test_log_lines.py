"""Lines for people: short sentences for frequent events, which no client can disturb."""

from __future__ import annotations

import logging

import pytest

from tokenmill.api.http.logs import log_lines
from tokenmill.api.http.logs.log_lines import LineFormatter, draining_text, duration

ID = "chatcmpl-0123456789abcdef0123456789abcdef"
ANSWER = {"method": "POST", "path": "/v1/chat/completions", "status": 200, "seconds": 1.0,
          "prompt_tokens": 36, "completion_tokens": 64, "ttft": 0.0851, "tokens_per_second": 38.24,
          "request_id": ID}  # fmt: skip


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "terminal_columns", lambda: 80)
    monkeypatch.setenv("NO_COLOR", "1")


def line(event: str, *, is_terminal: bool = False, name: str = "api", **fields: object) -> str:
    record = logging.makeLogRecord({"name": f"tokenmill.{name}", "msg": event, **fields})
    text = LineFormatter(is_terminal=is_terminal).format(record)
    assert text.startswith("\r") == is_terminal
    return text.strip("\r")


def test_an_answer_is_one_line_with_its_id_last() -> None:
    text = line("request", **ANSWER)[len("hh:mm:ss ") :]
    assert text == f"200 /v1/chat/completions 36 in 64 out TTFT 85 ms 38.2 tok/s {ID}"


def test_on_a_terminal_the_line_fits_because_the_id_is_cut() -> None:
    text = line("request", is_terminal=True, **ANSWER)
    assert len(text) == 80 and text.endswith(" 38.2 tok/s 0123456789a")
    short = line("request", is_terminal=True, **ANSWER | {"request_id": "abc"})
    assert short.endswith(" abc")


def test_an_error_is_shown_with_its_reason() -> None:
    fields = {"method": "GET", "path": "/nope", "status": 404, "seconds": 0.001,
              "error": "there is none", "request_id": "abc"}  # fmt: skip
    assert line("request", **fields).endswith(" 404 GET /nope there is none abc")
    assert " ended early chatcmpl-0123" in line("request", **ANSWER | {"status": 499})
    left = line("request", **ANSWER | {"status": 499, "error": "the client left"})
    assert " ended early: the client left " in left


def test_a_clients_text_cannot_control_the_terminal() -> None:
    odd = {"path": "/\x1b[2J\n", "error": "\x9b1m", "request_id": "\u202e\x1b]0;a\x07"}
    text = line("request", is_terminal=True, **ANSWER | odd)
    assert text.isprintable() and "/?[2J?" in text
    assert line("other", text="\x1b[2J\n", name="acme").isprintable()


def test_a_line_that_the_engine_s_process_prints_is_shown_as_it_is() -> None:
    text = line("printed", name="engine", text="it's 3 \x1b[2J")
    assert text[len("hh:mm:ss ") :] == "| it's 3 ?[2J"


def test_a_plugin_that_starts_slowly_is_named() -> None:
    stage = "importing plugin 'acme' (acme 1.0)"
    text = line("plugin_start_slow", name="plugins", stage=stage, seconds=4)
    assert text.endswith(f" still {stage} after 4 s")


def test_events_that_only_share_a_name_are_shown_with_their_fields() -> None:
    assert line("request", name="acme", a=1).endswith(" request a=1")
    assert line("stopped", name="acme").endswith(" stopped")


def test_statistics_are_one_line() -> None:
    fields = {"avg_prompt_throughput": "41.2 tokens/s", "running": 2, "waiting": 0,
              "avg_generation_throughput": "187.3 tokens/s", "kv_cache_usage": "13.1%",
              "total_cumulative_preemption_cnt": 0}  # fmt: skip
    text = line("engine_stats", name="stats", **fields, prefix_cache_hit_rate="30.0%")
    assert text[9:] == (
        "41.2 tokens/s in, 187.3 tokens/s out, 2 running, 0 waiting, KV cache 13.1%, "
        "prefix cache hit rate 30.0%"
    )


def test_the_first_ctrl_c_says_what_still_runs() -> None:
    assert line("draining", is_terminal=True, timeout=30.0, num_requests=2) == (
        "2 answers still run (up to 30 s); Ctrl-C again stops now"
    )
    assert draining_text({"num_requests": 1, "timeout": 0.5}).startswith("1 answer still runs (up")
    assert draining_text({"num_requests": 0, "timeout": 30.0}) == "stopping"
    assert line("stopped", is_terminal=True) == "stopped"
    assert "draining timeout=1 num_requests=2" in line("draining", timeout=1, num_requests=2)


@pytest.mark.parametrize(("seconds", "text"), [(0.0004, "0 ms"), (0.25, "250 ms"), (1.24, "1.2 s"),
                                               (75.4, "75 s")])  # fmt: skip
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_colors_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[32m200\x1b[0m" in line("request", is_terminal=True, **ANSWER)
    assert "\x1b" not in line("request", **ANSWER)
