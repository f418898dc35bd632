"""An engine in this process, which a chat reaches through the app of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.api.serving import PATIENCE, toy_engine
from tokenmill.api.commands.chat.connection.embedded import EngineTransport, running_loop
from tokenmill.api.commands.chat.connection.partner import ContextFullError, Partner
from tokenmill.core.errors import TokenmillError
from tokenmill.testing.toy_tokenizer import ToyTokenizer

HELLO = [{"role": "user", "content": "hello"}]


@contextmanager
def toy_partner(tokenizer: ToyTokenizer) -> Iterator[Partner]:
    """A partner, whose requests have ended at the end."""
    engine = toy_engine(tokenizer=tokenizer)
    with running_loop(engine) as loop:
        yield Partner(EngineTransport(engine, loop))
        end = time.monotonic() + PATIENCE
        while engine.load().num_running:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_an_engine_answers_stops_and_refuses_as_a_server_does() -> None:
    with toy_partner(ToyTokenizer()) as partner:
        pieces = list(partner.answer(HELLO, {"max_tokens": 5}))
        assert len("".join(piece.text for piece in pieces)) == 5
        assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
        assert any(piece.usage and piece.usage.num_answer_tokens == 5 for piece in pieces)
        with pytest.raises(TokenmillError, match="temperature"):
            list(partner.answer(HELLO, {"temperature": -1}))
        long = [{"role": "user", "content": "x" * (partner.context_length or 0)}]
        with pytest.raises(ContextFullError):
            list(partner.answer(long, {}))
        with closing(partner.answer(HELLO, {})) as answer:
            next(answer)


class BrokenTokenizer(ToyTokenizer):
    def encode_chat(self, *arguments: Any, **options: Any) -> list[int]:
        raise ZeroDivisionError


def test_a_bug_in_the_engine_ends_the_answer_and_not_the_chat() -> None:
    with toy_partner(BrokenTokenizer()) as partner:
        for _ in range(2):
            with pytest.raises(TokenmillError, match="failed to answer"):
                list(partner.answer(HELLO, {}))
