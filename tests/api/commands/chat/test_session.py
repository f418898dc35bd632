"""A conversation without a terminal, with a partner that says what a test wants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tokenmill.api.commands.chat.connection.partner import (
    ContextFullError,
    Message,
    Piece,
    Pieces,
    Usage,
)
from tokenmill.api.commands.chat.session import Session
from tokenmill.core.errors import TokenmillError

PIECES = ("Hi", " there")


class Parrot:
    """Says `pieces`, of a character per token, or refuses conversations that are too long."""

    model = "parrot"
    place = "here"

    def __init__(self, *, limit: int = 10**6, context_length: int | None = None) -> None:
        self.limit = limit
        self.context_length = context_length
        self.sampling: Mapping[str, Any] = {}
        self.pieces: Sequence[str] = PIECES
        self.finish_reason = "stop"
        self.failure: Exception | None = None
        self.heard: list[list[Message]] = []

    def answer(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Pieces:
        self.heard.append(list(messages))
        size = sum(len(message["content"]) for message in messages)
        if size > self.limit:
            raise ContextFullError(f"the context is {self.limit} tokens")
        for piece in self.pieces:
            yield Piece(text=piece)
        if self.failure is not None:
            raise self.failure
        count = sum(map(len, self.pieces))
        yield Piece(
            finish_reason=self.finish_reason,
            usage=Usage(num_prompt_tokens=size, num_answer_tokens=count, num_cached_tokens=2),
        )


def say(session: Session, text: str) -> str:
    return "".join(piece.text for piece in session.ask(text))


def heard(parrot: Parrot) -> list[str]:
    """The texts of the messages of the last request."""
    return [message["content"] for message in parrot.heard[-1]]


def test_the_model_sees_the_whole_conversation() -> None:
    parrot = Parrot()
    session = Session(parrot, system="Be brief.")
    assert say(session, "one") == "Hi there"
    say(session, "two")
    assert heard(parrot) == ["Be brief.", "one", "Hi there", "two"]
    assert [message["role"] for message in session.messages] == [
        "system",
        *["user", "assistant"] * 2,
    ]


def test_a_stopped_answer_keeps_its_text_in_the_conversation() -> None:
    parrot = Parrot()
    session = Session(parrot)
    with closing(session.ask("one")) as answer:
        assert next(answer).text == "Hi"
    say(session, "two")
    assert heard(parrot) == ["one", "Hi", "two"]


def test_a_failure_leaves_the_conversation_and_the_message_for_another_try() -> None:
    parrot = Parrot()
    session = Session(parrot)
    say(session, "one")
    parrot.pieces, parrot.failure = (), TokenmillError("the server is gone")
    with pytest.raises(TokenmillError, match="gone"):
        say(session, "two")
    assert len(session.turns) == 2 and session.unanswered == "two"
    parrot.pieces, parrot.failure = ("Hi",), None
    assert session.undo() == "two"
    assert session.undo() == "one"
    assert session.undo() is None and session.messages == []


def test_the_oldest_turns_make_room_when_the_model_refuses() -> None:
    parrot = Parrot(limit=35)
    session = Session(parrot)
    for text in ("one", "two", "three", "four"):
        say(session, text)
    assert session.notices == ["the context is full: the oldest turn was dropped"]
    assert heard(parrot) == ["two", "Hi there", "three", "Hi there", "four"]
    assert session.turns[0]["content"] == "two"


def test_a_message_that_is_too_long_alone_costs_no_turn() -> None:
    session = Session(Parrot(limit=40))
    say(session, "one")
    with pytest.raises(ContextFullError):
        say(session, "x" * 50)
    assert [message["content"] for message in session.turns] == ["one", "Hi there"]


@pytest.mark.parametrize(("options", "most"), [({}, 100), ({"max_tokens": 60}, 40)])
def test_turns_are_dropped_before_an_answer_would_have_no_room(
    options: dict[str, int], most: int
) -> None:
    parrot = Parrot(context_length=100)
    session = Session(parrot, options=options)
    for number in range(10):
        say(session, f"message {number}")
        size = sum(len(text) for text in heard(parrot))
        assert size < most
    assert heard(parrot)[0] != "message 0" and len(heard(parrot)) > 2
    assert session.num_tokens is not None and session.num_tokens <= 100


def test_the_user_learns_why_an_answer_ended() -> None:
    parrot = Parrot(context_length=1000)
    session = Session(parrot, options={"max_tokens": 8})
    parrot.finish_reason = "length"
    say(session, "one")
    assert session.notices == ["the answer was cut off: max_tokens=8"]
    session.set_option("max_tokens", None)
    say(session, "two")
    assert session.notices == ["the answer was cut off: the context is full"]
    parrot.finish_reason, parrot.pieces = "stop", ()
    say(session, "three")
    assert session.notices == ["the answer is empty"]


def test_a_conversation_is_saved_and_continued(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    session = Session(Parrot(), system="Sei höflich.")
    say(session, "one")
    session.save(file)
    session.save(file)  # its own file may be replaced
    found = json.loads(file.read_text())
    assert found["model"] == "parrot" and found["messages"] == session.messages
    other = Session(Parrot())
    say(other, "something else")
    other.load(file)
    assert other.messages == session.messages


def test_a_last_message_of_the_user_waits_for_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "user", "content": "one"}]))
    session = Session(Parrot())
    session.load(file)
    assert session.turns == [] and session.unanswered == "one"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("\x80", "not JSON"),
        ("3", "no list of messages"),
        ('[{"role": "user"}]', "message 1"),
        ('[{"role": "tool", "content": "x"}]', "message 1"),
        ('{"messages": ["x"]}', "message 1"),
        ('[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]', "message 2"),
    ],
)
def test_a_file_that_is_something_else_is_neither_loaded_nor_replaced(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "notes"
    file.write_bytes(text.encode("latin-1"))
    session = Session(Parrot())
    say(session, "one")
    for action in (session.load, session.save):
        with pytest.raises(TokenmillError, match=reason):
            action(file)
    assert file.read_bytes() == text.encode("latin-1") and len(session.turns) == 2


def test_a_missing_file_or_folder_is_one_line(tmp_path: Path) -> None:
    session = Session(Parrot())
    with pytest.raises(TokenmillError, match="cannot be read: No such file"):
        session.load(tmp_path / "no")
    with pytest.raises(TokenmillError, match="cannot be written: No such file"):
        session.save(tmp_path / "no" / "chat.json")
