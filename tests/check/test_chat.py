"""`tokenmill chat` as a person uses it: keys on a terminal, and what the screen shows then."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.api.commands.chat.scripted_server import (
    Answer,
    ScriptedServer,
    scripted_server,
)
from tests.terminal import PATIENCE, Terminal, on_terminal, pasted

ENTER, ALT_ENTER, TAB = "\r", "\x1b\r", "\t"
CTRL_A, CTRL_C, CTRL_D, CTRL_K, UP = "\x01", "\x03", "\x04", "\x0b", "\x1b[A"
FULL = "This model's maximum context length is 64 tokens. However, your messages have 65 tokens."


@contextmanager
def chatting(folder: Path, *arguments: str, **environment: str) -> Iterator[Terminal]:
    """A chat that waits for its first message."""
    command = [sys.executable, "-m", "tokenmill", "chat", *arguments]
    environment = {"XDG_STATE_HOME": str(folder / "state"), **environment}
    with on_terminal(
        command, columns=80, lines=24, environment=environment, folder=folder
    ) as found:
        found.wait_for(">>>")
        yield found


def say(chat: Terminal, keys: str, answer: str) -> list[str]:
    """Press keys and Enter, wait for the answer and the next prompt; returns what came after the
    keys."""
    begin = len(chat.lines()) - 1
    chat.press(keys + ENTER)
    chat.wait_for(answer, begin=begin)
    wait_for_prompt(chat)
    return chat.lines()[begin:]


def wait_for_prompt(chat: Terminal) -> None:
    chat.wait_for_lines(lambda lines: lines[-1:] == [">>>"])


def press(chat: Terminal, keys: str, text: str) -> None:
    """Press keys, and wait for a text in the last lines."""
    begin = len(chat.lines()) - 1
    chat.press(keys)
    chat.wait_for(text, begin=begin)


def test_keys_and_commands(tmp_path: Path) -> None:
    with scripted_server() as server, chatting(tmp_path, "--url", server.url) as chat:
        banner = "\n".join(chat.lines())
        for word in ("parrot", server.url, "1000 tokens", "/help", "Ctrl-C", "Ctrl-D"):
            assert word in banner
        check_messages(chat, server)
        check_commands(chat, server)
        check_history(chat, server)
        press(chat, CTRL_C, "Ctrl-C again")
        wait_for_prompt(chat)
        press(chat, "no", ">>> no")
        chat.press(CTRL_C)
        wait_for_prompt(chat)
        press(chat, CTRL_C, "Ctrl-C again")
        chat.press(CTRL_C)
        assert chat.wait() == 0
    with scripted_server() as server, chatting(tmp_path, "--url", server.url) as chat:
        press(chat, UP, ">>> edited")  # of the conversation before
        chat.press(CTRL_A + CTRL_K + CTRL_D)
        assert chat.wait() == 0


def check_messages(chat: Terminal, server: ScriptedServer) -> None:
    say(chat, "hello", "Hello.")
    chat.press(ENTER)  # is ignored
    assert say(chat, 'x"' + CTRL_A + "\x1b[C" + "y", "Hello.")  # editing within the line
    assert server.contents() == ["hello", "Hello.", 'xy"']
    press(chat, pasted("first\nsecond"), "second")
    assert len(server.bodies) == 2  # a paste is not sent before Enter
    say(chat, "", "Hello.")
    assert server.contents()[-1] == "first\nsecond"
    press(chat, '"""one' + ENTER, "...")
    say(chat, 'two"""', "Hello.")
    assert server.contents()[-1] == "one\ntwo"
    chat.press("three" + ALT_ENTER)
    say(chat, "four", "Hello.")
    assert server.contents()[-1] == "three\nfour"
    assert len(server.bodies) == 5
    server.answers = [Answer(pieces=("**bo", "ld** and `code`"), reasoning="let me see")]
    shown = say(chat, "markup", "bold and code")
    assert any("let me see" in line for line in shown) and not any("*" in line for line in shown)


def check_commands(chat: Terminal, server: ScriptedServer) -> None:
    num_sent = len(server.bodies)
    say(chat, "/hlep", "Did you mean '/help'?")
    assert len(say(chat, "/help", "Ctrl-D")) > 11
    say(chat, "/set temperature=0.7", "temperature=0.7")
    say(chat, "/system Be brief.", "system message: Be brief.")
    press(chat, "/sav" + TAB, "/save")
    say(chat, "talk.json", "saved 13 messages")
    say(chat, "/undo", "removed: markup")
    say(chat, "/clear", "the conversation is empty")
    press(chat, "/load ta" + TAB, "/load talk.json")
    say(chat, "", "loaded 13 messages")
    assert len(server.bodies) == num_sent
    usage = {"prompt_tokens": 90, "completion_tokens": 10}
    server.answers = [Answer(pieces=("a", "b"), usage=usage)]
    say(chat, "/retry", "ab")
    assert server.contents()[0] == "Be brief." and server.contents()[-1] == "markup"
    assert server.bodies[-1]["temperature"] == 0.7
    say(chat, "/tokens", " of 1000 tokens")
    say(chat, "/show", "90 prompt tokens")
    say(chat, " /etc/hosts", "Hello.")
    assert server.contents()[-1] == "/etc/hosts"


def check_history(chat: Terminal, server: ScriptedServer) -> None:
    say(chat, "/clear", "the conversation is empty")
    say(chat, "edit", "Hello.")
    say(chat, UP + "ed", "Hello.")
    assert server.contents() == ["Be brief.", "edit", "Hello.", "edited"]


def test_ctrl_c_stops_an_answer_and_the_next_turn_sees_its_text(tmp_path: Path) -> None:
    with scripted_server() as server, chatting(tmp_path, "--url", server.url) as chat:
        server.answers = [Answer(pieces=("Once **upon",), hangs=True)]
        press(chat, "a story" + ENTER, "Once **upon")
        press(chat, CTRL_C, "stopped")
        assert server.has_left.wait(PATIENCE)
        say(chat, "go on", "Hello.")
        assert server.contents() == ["a story", "Once **upon", "go on"]


def test_a_full_context_drops_the_oldest_turns(tmp_path: Path) -> None:
    with (
        scripted_server({"id": "small"}) as server,
        chatting(tmp_path, "--url", server.url) as chat,
    ):
        for text in ("one", "two", "three"):
            say(chat, text, "Hello.")
        server.answers = [Answer(refusal=(400, FULL)), Answer(refusal=(400, FULL))]
        say(chat, "four", "the 2 oldest turns were dropped")
        assert server.contents() == ["three", "Hello.", "four"]
        server.answers = [Answer(refusal=(400, FULL)) for _ in range(3)]
        say(chat, "five", "error: This model's maximum context")
        say(chat, "/retry", "Hello.")
        assert server.contents() == ["three", "Hello.", "four", "Hello.", "five"]


def test_the_conversation_outlives_its_server(tmp_path: Path) -> None:
    with scripted_server() as server, chatting(tmp_path, "--url", server.url) as chat:
        server.answers = [Answer(), Answer(pieces=("Half an",), breaks=True)]
        say(chat, "one", "Hello.")
        say(chat, "two", "error: the connection to")
        server.stop()
        (line,) = (line for line in say(chat, "three", "error: ") if "error: " in line)
        assert "no server answers at" in line
        say(chat, "/save talk.json", "saved 4 messages")
        server.start()
        say(chat, "/retry", "Hello.")
        assert server.contents() == ["one", "Hello.", "two", "Half an", "three"]
    saved = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [message["content"] for message in saved] == ["one", "Hello.", "two", "Half an"]


def test_without_prompt_toolkit_a_plain_prompt_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "prompt_toolkit.py").write_text("raise ImportError")
    with (
        scripted_server() as server,
        chatting(tmp_path, "--url", server.url, "--plain", PYTHONPATH=str(tmp_path)) as chat,
    ):
        server.answers = [Answer(pieces=("**bold**",))]
        say(chat, "hello", "**bold**")
        press(chat, '"""one' + ENTER, "...")
        say(chat, 'two"""', "Hello.")
        assert server.contents()[-1] == "one\ntwo"
        press(chat, pasted("first\nsecond"), "second")
        say(chat, "", "Hello.")
        assert server.contents()[-1] == "first\nsecond"
        assert sum("pip install" in line for line in chat.lines()) == 1
        server.answers = [Answer(pieces=("Once",), hangs=True)]
        press(chat, "story" + ENTER, "Once")
        press(chat, CTRL_C, "stopped")
        chat.press("/bye" + ENTER)
        assert chat.wait() == 0


def test_a_model_of_its_own_is_stopped_and_answers_again(tmp_path: Path) -> None:
    flags = ("--num-gpu-blocks-override", "64", "--temperature", "0", "--seed", "1")
    with chatting(tmp_path, *flags) as chat:
        assert "SmolLM2-135M-Instruct" in "\n".join(chat.lines())
        press(chat, "Write a long story about a dragon." + ENTER, " the ")
        press(chat, CTRL_C, "stopped")
        wait_for_prompt(chat)
        say(chat, "What is the capital of Japan?", "Tokyo")
        say(chat, "/tokens", " of 1024 tokens")
        chat.press("/bye" + ENTER)
        assert chat.wait() == 0
