"""Images in a chat of the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.tiny_smolvlm import picture, png, write_model
from tokenmill.api.cli import main
from tokenmill.api.commands.chat.commands import completions, run_command
from tokenmill.api.commands.chat.session import Session
from tokenmill.core.errors import TokenmillError

from .test_session import Parrot, say


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    file = tmp_path / "photo.png"
    file.write_bytes(png(picture(0, 4, 4)))
    return file


def parts_of(parrot: Parrot) -> list[Any]:
    """The types of parts, or the text, of each message of the last request."""
    contents = [message["content"] for message in parrot.heard[-1]]
    return [c if isinstance(c, str) else [part["type"] for part in c] for c in contents]


def test_images_belong_to_the_next_message_and_stay_in_the_conversation(photo: Path) -> None:
    parrot = Parrot()
    session = Session(parrot)
    assert run_command(session, f"/image {photo}").text == "the next message has 1 image"
    assert run_command(session, f"/image {photo}").text == "the next message has 2 images"
    say(session, "What?")
    assert parts_of(parrot) == [["image_url", "image_url", "text"]]
    url = parrot.heard[-1][0]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,iVBOR")
    say(session, "And now?")
    assert parts_of(parrot) == [["image_url", "image_url", "text"], "Hi there", "And now?"]


def test_retry_sends_the_images_again_and_undo_forgets_them(photo: Path) -> None:
    parrot = Parrot()
    session = Session(parrot)
    run_command(session, f"/image {photo}")
    say(session, "What?")
    say(session, run_command(session, "/retry").message or "")
    assert parts_of(parrot) == [["image_url", "text"]]
    run_command(session, "/undo")
    say(session, "Hi")
    assert parts_of(parrot) == ["Hi"]


def test_a_message_that_was_not_answered_keeps_its_images(photo: Path) -> None:
    parrot = Parrot()
    parrot.pieces, parrot.failure = (), TokenmillError("lost")
    session = Session(parrot)
    run_command(session, f"/image {photo}")
    with pytest.raises(TokenmillError, match="lost"):
        say(session, "What?")
    assert len(session.images) == 1


def test_a_saved_conversation_has_its_images(photo: Path, tmp_path: Path) -> None:
    parrot, file = Parrot(), tmp_path / "chat.json"
    session = Session(parrot)
    run_command(session, f"/image {photo}")
    say(session, "What?")
    session.save(file)
    assert json.loads(file.read_text())["messages"][0]["content"][1]["text"] == "What?"
    again = Session(parrot)
    again.load(file)
    assert again.messages == session.messages
    say(again, "And now?")
    assert parts_of(parrot)[0] == ["image_url", "text"]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    session = Session(Parrot())
    with pytest.raises(TokenmillError, match=r"missing.png cannot be read: No such file"):
        run_command(session, f"/image {tmp_path}/missing.png")
    assert completions("/ima") == ["/image "]


def test_an_image_of_the_command_line_is_answered(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model")
    words = ["chat", str(model), "-q", "What?", "--image", str(photo), "--max-tokens", "4"]
    memory = ["--num-gpu-blocks-override", "64", "--temperature", "0"]
    assert main([*words, *memory]) == 0
    with_image = capsys.readouterr().out
    assert main([*words[:4], *words[6:], *memory]) == 0
    assert capsys.readouterr().out != with_image
