"""The source of the tokens of prompts: the server itself, or plain words."""

from __future__ import annotations

from collections.abc import Sequence

from .client import Server, ServerError

_SAMPLE = (
    "The engine serves many requests at once. A scheduler chooses which of them compute in the "
    "next step, and how many tokens each one gets. When the memory is full, a request gives up its "
    "blocks and waits until there is room again. On a quiet evening the streets of the old town "
    "are empty, the river is high after a week of rain, and small boats lie along the wooden "
    "bridge. People talk about music, weather, prices and the long summer that ended early. "
    "Numbers such as 17, 256 and 4096 appear in tables; dates, names and short codes do, too. "
)
"""Its tokens are the vocabulary of random prompts."""


class Words:
    """A Vocabulary of plain words, for servers without a tokenizer. A word counts as one token."""

    def __init__(self) -> None:
        self._words = sorted(set(_SAMPLE.replace(".", "").replace(",", "").lower().split()))
        self.token_ids: Sequence[int] = range(len(self._words))

    def text(self, token_ids: Sequence[int]) -> str:
        return "".join(f" {self._words[index]}" for index in token_ids)

    def count(self, text: str) -> int:
        return len(text.split())


class ServerWords(Words):
    """Words that are one token each for the server's tokenizer, with a space before them."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self._words = list(words)
        self.token_ids = range(len(self._words))


async def vocabulary_of(server: Server, model: str) -> tuple[Words, bool]:
    """Return words, and whether the server's tokenizer says that each is one token.

    The server must have /tokenize, as tokenmill, vLLM and SGLang do.
    """
    plain = Words()
    known = []
    try:
        for word in plain.text(plain.token_ids).split():
            body = {"model": model, "prompt": f" {word}", "add_special_tokens": False}
            answer = await server.get_json("/tokenize", body)
            if answer["count"] == 1:
                known.append(word)
    except (ServerError, KeyError, TypeError):
        return plain, False
    return (ServerWords(known), True) if len(known) >= 16 else (plain, False)
