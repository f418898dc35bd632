"""The command line with the real model: serving until a signal, and answers in the terminal."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tokenmill.api.cli import main

from ..server_process import running_server
from ..terminal import on_terminal
from .serving import PATIENCE, Served
from .test_cli import check_one_line, tokenmill
from .test_errors import check_error

STORY = {"prompt": "Once upon a time", "stream": True, "ignore_eos": True}


def test_serve_shows_what_to_do_and_drains_at_sigterm() -> None:
    command = [sys.executable, "-m", "tokenmill", "serve", "--port", "0"]
    command += ["--num-gpu-blocks-override", "64", "--served-model-name", "it's mine"]
    with on_terminal(command, columns=80, lines=40) as terminal:
        text = terminal.wait_for("tokenmill chat --url")
        process = terminal.process
        assert "loading weights" in text and re.search(r"Model +it's mine\n", text)
        (url,) = re.findall(r"Address +(http://127\.0\.0\.1:\d+)\n", text)
        check_curl_command(text[text.index("curl ") : text.index("tokenmill chat")], url)
        check_listeners(process, int(url.rpartition(":")[2]))
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            with http.stream("POST", "/v1/completions", json=STORY | {"max_tokens": 40}) as story:
                lines = story.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as other:
                    while other.get("/ready").status_code == 200:
                        pass
                    refused = other.post("/v1/completions", json={"prompt": "a"})
                    assert int(refused.headers["retry-after"]) >= 1
                    check_error(refused, 503)
                    assert other.get("/health").status_code == 200
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert terminal.wait() == 0
    assert "1 answer still runs (up to 30 s)" in terminal.text()
    assert terminal.text().endswith("\nstopped") and "Traceback" not in terminal.text()


def check_curl_command(command: str, url: str) -> None:
    """What a shell makes of the command is a request that is answered pleasantly."""
    words = shlex.split(command.replace("\\\n", ""))
    assert words[1] == f"{url}/v1/chat/completions"
    body = words[words.index("-d") + 1]
    name, _, value = words[words.index("-H") + 1].partition(": ")
    headers = {name: value}
    answer = httpx.post(words[1], content=body, headers=headers, timeout=PATIENCE, trust_env=False)
    assert "Tokyo" in answer.json()["choices"][0]["message"]["content"]


def check_listeners(process: subprocess.Popen[bytes], port: int) -> None:
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    listening = [
        connection.laddr
        for member in family
        for connection in member.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", port)]


@pytest.mark.check  # it loads the model; test_server.py ends a server by two signals, too
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path, "--shutdown-timeout", "600") as server:
        process = server.process
        with (
            httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as http,
            http.stream("POST", "/v1/completions", json=STORY | {"max_tokens": 2000}) as story,
        ):
            lines = story.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            while http.get("/ready").status_code == 200:
                pass
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
    assert "Traceback" not in server.log.read_text()


def test_ctrl_c_ends_it_while_the_model_is_loading(tmp_path: Path) -> None:
    err = tmp_path / "err"
    command = [sys.executable, "-m", "tokenmill", "serve", "--port", "0"]
    with err.open("wb") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    end = time.monotonic() + 90
    while "loading weights" not in err.read_text():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert "Traceback" not in err.read_text() and "model_loaded" not in err.read_text()


def test_generate_continues_a_prompt_on_standard_output_alone() -> None:
    done = tokenmill("generate", "The capital of France is", "--max-tokens", "4",
                     "--temperature", "0", "--num-gpu-blocks-override", "16")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout and done.stdout.endswith("\n")
    assert "loading weights" in done.stderr and "Traceback" not in done.stderr


def test_chat_answers_once_and_shows_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["chat", "-q", "What is the capital of Japan?", "--max-tokens", "16",
                   "--stats", "--temperature", "0",
                   "--num-gpu-blocks-override", "16"])  # fmt: skip
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert "Tokyo" in printed.out
    assert "tokens/s" in printed.err


def test_a_chat_from_a_pipe_prints_only_its_answers(real: Served) -> None:
    asked = ("My name is Bob.", "What is my name?")
    lines = "\n".join([asked[0], "", "/show", asked[1]])
    done = tokenmill("chat", "--url", real.url, "--max-tokens", "8", "--temperature", "0",
                     "--stop", "\n", input=lines)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "SmolLM2-135M-Instruct" in done.stderr and "temperature=0.0" in done.stderr
    first, second = done.stdout.splitlines()
    messages = [
        {"role": "user", "content": asked[0]},
        {"role": "assistant", "content": first},
        {"role": "user", "content": asked[1]},
    ]
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "stop": ["\n"]}
    with real.client() as http:
        answer = http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == second
    real.wait_idle()


def test_chat_says_what_the_server_refused(real: Served) -> None:
    done = tokenmill("chat", "-q", "hi", "--url", f"{real.url}/v1", "--temperature", "-1")
    check_one_line(done, 1, "temperature")
