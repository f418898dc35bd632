"""The commands of a chat."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.api.commands.chat.commands import (
    COMMANDS,
    completions,
    is_command,
    run_command,
)
from tokenmill.api.commands.chat.session import Session
from tokenmill.core.errors import TokenmillError

from .test_session import Parrot, say


@pytest.fixture
def session() -> Session:
    """A conversation with one turn."""
    session = Session(Parrot(context_length=1000), options={"temperature": 0.2})
    say(session, "one\nand more")
    return session


def said(session: Session, line: str) -> str:
    return run_command(session, line).text


def test_help_lists_all_commands_and_keys(session: Session) -> None:
    text = said(session, "/help")
    assert all(name in text for name in (*COMMANDS, '"""', "Ctrl-C", "Ctrl-D"))
    assert max(map(len, text.splitlines())) < 80


def test_settings_are_changed_shown_and_reset(session: Session) -> None:
    assert said(session, "/set") == "temperature=0.2"
    said(session, "/set temperature=0.7 top_k=5")
    assert session.options == {"temperature": 0.7, "top_k": 5}
    said(session, "/set temperature=  top_k=")
    assert said(session, "/set") == "the model's defaults"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("/set temprature=1", "Did you mean 'temperature'"),
        ("/set temperature", "temperature needs a value"),
        ("/set temperature=warm", "must be a number, got 'warm'"),
        ("/set top_k=1.5", "must be a whole number"),
        ("/set temperature=-1", "temperature"),
        ("/hlep", "unknown command /hlep. Did you mean '/help'"),
        ("/etc/passwd", "a space before it sends it"),
        ("/save", "/save FILE"),
        ("/clear all", "takes no argument"),
        ("/load /no/such/file", "cannot be read"),
        ("/load ~no-such-user/file", "cannot be read"),
    ],
)
def test_a_wrong_command_is_one_line_and_changes_nothing(
    session: Session, line: str, reason: str
) -> None:
    with pytest.raises(TokenmillError, match=reason) as raised:
        run_command(session, line)
    assert "\n" not in str(raised.value)
    assert session.options == {"temperature": 0.2} and len(session.turns) == 2


def test_the_system_message_is_set_shown_and_removed(session: Session) -> None:
    said(session, "/system Answer in one word.")
    assert session.messages[0] == {"role": "system", "content": "Answer in one word."}
    assert said(session, "/system") == "system message: Answer in one word."
    said(session, "/system none")
    assert session.messages[0]["role"] == "user"


def test_clear_keeps_the_system_message(session: Session) -> None:
    said(session, "/system Be brief.")
    said(session, "/clear")
    assert [message["role"] for message in session.messages] == ["system"]


def test_retry_sends_the_last_message_again(session: Session) -> None:
    assert run_command(session, "/retry").message == "one\nand more"
    assert session.turns == []
    with pytest.raises(TokenmillError, match="empty"):
        run_command(session, "/retry")


def test_undo_removes_the_last_turn(session: Session) -> None:
    assert said(session, "/undo") == "removed: one"
    assert session.turns == []


def test_show_and_tokens_have_the_numbers_of_the_last_answer(session: Session) -> None:
    text = said(session, "/show")
    for word in ("parrot", "1000 tokens", "temperature=0.2", "first token after", "tokens/s",
                 "12 prompt tokens (2 cached), 8 answer tokens"):  # fmt: skip
        assert word in text
    assert said(session, "/tokens") == "about 25 of 1000 tokens"


def test_save_and_load_take_a_path(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "with space.json"
    assert said(session, f"/save {file}") == f"saved 2 messages to {file}"
    said(session, "/clear")
    assert said(session, f"/load {file}") == f"loaded 2 messages from {file}"
    assert len(session.turns) == 2


def test_bye_leaves(session: Session) -> None:
    assert run_command(session, "/bye").leaves


def test_only_a_line_that_begins_with_a_slash_is_a_command() -> None:
    assert is_command("/x") and not is_command(" /x") and not is_command("/* code */\nx")


def test_commands_settings_and_files_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talk.json").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "talks").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completions("/s") == ["/system ", "/set ", "/show", "/save "]
    assert completions("/set temperature=1 top") == ["top_p=", "top_k=", "top_n_sigma="]
    assert completions("/load t") == ["talk.json", "talks/"]
    assert completions(f"/save {tmp_path}/") == [f"{tmp_path}/talk.json", f"{tmp_path}/talks/"]
    assert completions("/load /no/such/") == completions("/clear ") == []
