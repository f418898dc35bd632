"""Answers of any server with OpenAI's API."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pytest

from tokenmill.api.commands.chat.connection.partner import ContextFullError, Partner, Piece
from tokenmill.api.commands.chat.connection.transport import HTTPTransport
from tokenmill.api.commands.chat.session import Session
from tokenmill.core.errors import TokenmillError

from ..scripted_server import PATIENCE, Answer, ScriptedServer, scripted_server

HELLO = [{"role": "user", "content": "hello"}]


def partner_of(server: ScriptedServer, model: str | None = None) -> Partner:
    return Partner(HTTPTransport(f"{server.url}/v1", "secret"), model)


def answer_of(server: ScriptedServer, **options: Any) -> list[Piece]:
    return list(partner_of(server).answer(HELLO, options))


def test_an_answer_comes_in_pieces_with_its_reasoning_and_its_numbers() -> None:
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    with scripted_server() as server:
        server.answers = [Answer(pieces=("a", "b"), reasoning="hm", usage=usage)]
        pieces = answer_of(server, temperature=0.5)
    assert "".join(piece.text for piece in pieces) == "ab"
    assert pieces[0].reasoning == "hm"
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop"]
    (found,) = [piece.usage for piece in pieces if piece.usage]
    assert (found.num_prompt_tokens, found.num_answer_tokens, found.num_cached_tokens) == (7, 3, 4)
    (body,) = server.bodies
    assert body["model"] == "parrot" and body["temperature"] == 0.5 and body["stream"]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}


def test_the_model_is_the_server_s_first_or_the_one_that_is_named() -> None:
    with scripted_server({"id": "a", "max_model_len": 8}, {"id": "b"}) as server:
        assert [partner_of(server).model, partner_of(server).context_length] == ["a", 8]
        assert [partner_of(server, "b").model, partner_of(server, "c").model] == ["b", "c"]
        server.models.clear()
        with pytest.raises(TokenmillError, match="lists no model"):
            partner_of(server)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8 tokens. However, you requested 9 tokens",  # vLLM
        "The decoder prompt (length 9) is longer than the maximum model length of 8",
        "the request exceeds the available context size (8 tokens)",
        "request (9 tokens) exceeds the available context size (8 tokens)",  # llama.cpp
        "the conversation has 9 characters; the context of 8 tokens cannot hold more than 8",
    ],
)
def test_a_full_context_is_recognized_in_the_words_of_each_server(message: str) -> None:
    with scripted_server() as server:
        server.answers = [Answer(refusal=(400, message)), Answer(refusal=(400, "no such field"))]
        with pytest.raises(ContextFullError, match="8"):
            answer_of(server)
        with pytest.raises(TokenmillError, match="no such field") as raised:
            answer_of(server)
        assert not isinstance(raised.value, ContextFullError)


def test_the_server_sees_that_an_answer_is_stopped() -> None:
    with scripted_server() as server:
        server.answers = [Answer(hangs=True)]
        with closing(partner_of(server).answer(HELLO, {})) as answer:
            assert next(answer).text == "Hello."
        assert server.has_left.wait(PATIENCE)


def test_a_lost_connection_is_an_error_after_what_has_come() -> None:
    with scripted_server() as server:
        server.answers = [Answer(breaks=True)]
        answer = partner_of(server).answer(HELLO, {})
        assert next(answer).text == "Hello."
        with pytest.raises(TokenmillError, match="is lost"):
            list(answer)


def test_a_server_that_is_not_there_or_is_another_one_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TokenmillError, match=f"no server answers at http://127.0.0.1:{port}/v1: "):
        Partner(HTTPTransport(f"http://127.0.0.1:{port}/v1", None))


def test_a_server_with_another_api_is_one_line() -> None:
    with scripted_server() as server:
        server.answers = [Answer(pieces=(["a", "list"],))]  # type: ignore[arg-type]
        with pytest.raises(TokenmillError, match="does not answer as OpenAI's API does"):
            answer_of(server)
        server.models = [{"name": "no id"}]
        with pytest.raises(TokenmillError, match="does not answer as OpenAI's API does"):
            partner_of(server)


@pytest.mark.parametrize(("length", "max_tokens"), [(8192, 1024), (1024, 128)])
def test_the_default_model_has_the_sampling_that_suits_it(length: int, max_tokens: int) -> None:
    with scripted_server({"id": "SmolLM2-135M-Instruct", "max_model_len": length}) as server:
        session = Session(partner_of(server), options={"temperature": 0.5})
        list(session.ask("hello"))
    (body,) = server.bodies
    found = [body[name] for name in ("temperature", "top_p", "max_tokens")]
    assert found == [0.5, 0.9, max_tokens]
