"""Random requests of all APIs: good ones with many options, and bad ones."""

from __future__ import annotations

import itertools
import random
from typing import Any

from .calling import Call

TEXT = (
    "the mill grinds corn while water turns a wheel and people wait in rain for bread or flour "
    "one two three red green blue code list int return Why Paris 12 2026 über 水 🙂"
)
WORDS = TEXT.split()
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "is_good": {"type": "boolean"}},
    "required": ["name", "is_good"],
    "additionalProperties": False,
}
Fields = dict[str, Any]
GRAMMARS: tuple[Fields, ...] = (
    {"structured_outputs": {"regex": r"[a-z]{1,6}\d"}},
    {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    {"structured_outputs": {"json": SCHEMA}},
    {"response_format": {"type": "json_object"}},
)
SAMPLING: tuple[Fields, ...] = (
    {"temperature": 0},
    {"seed": 7, "top_p": 0.9},
    {"top_k": 20, "min_p": 0.05},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.1},
    {"logit_bias": {"100": 5, "200": -100}},
    {"ignore_eos": True, "min_tokens": 1},
    {"bad_words": ["the"], "allowed_token_ids": list(range(100, 3000))},
)
COMMON: tuple[Fields, ...] = (
    {"n": 2},
    {"n": 3, "seed": 1},
    {"stop": ["a", "\n"]},
    {"stop": "e", "include_stop_str_in_output": True},
    {"prompt_logprobs": 1},
    {"return_token_ids": True},
    {"stream_interval": 3},
    {"cache_salt": "salt"},
    {"truncate_prompt_tokens": 20},
    {"priority": 0},
)
TOOL = {"name": "note", "description": "Write it down.", "parameters": SCHEMA}
FOR_CHATS: tuple[Fields, ...] = (
    {"logprobs": True, "top_logprobs": 2},
    {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
)
FOR_COMPLETIONS: tuple[Fields, ...] = (
    {"logprobs": 3},
    {"echo": True, "logprobs": 1},
    {"prompt": ["one", "two three"]},
    {"prompt": [504, 905, 260]},
)
_OF_GRAMMARS = frozenset(key for fields in GRAMMARS for key in fields)
_WORDS = {"bad_words", "allowed_token_ids", "logit_bias"}
MAX_PROMPT_WORDS = 20
MAX_ANSWER = 8


class Asker:
    """Makes requests that nobody has made before."""

    def __init__(
        self,
        seed: int,
        model: str,
        *,
        max_words: int = MAX_PROMPT_WORDS,
        with_logits: bool = True,
    ) -> None:
        """`with_logits`: also requests with grammars, tools or log-probabilities."""
        self.rng = random.Random(seed)
        self._with_logits = with_logits
        self._model = model
        self._max_words = max_words
        self._numbers = (f"{seed}.{number}" for number in itertools.count())

    def text(self) -> str:
        words = self.rng.choices(WORDS, k=self.rng.randint(1, self._max_words))
        return f"{next(self._numbers)} {' '.join(words)}"

    def good(self) -> Call:
        return self.rng.choice(
            (
                self.completion,
                self.completion,
                self.chat,
                self.chat,
                self.response,
                self.message,
                self.embedding,
                self.tokenization,
            )
        )()

    def completion(self, **fields: Any) -> Call:
        body = {"prompt": self.text(), **self._options(FOR_COMPLETIONS), **fields}
        return Call.of("/v1/completions", body)

    def chat(self, **fields: Any) -> Call:
        body = {"messages": self._messages(), **self._options(FOR_CHATS), **fields}
        return Call.of("/v1/chat/completions", body)

    def response(self) -> Call:
        body: Fields = {
            "input": self.text(),
            "max_output_tokens": self._max_tokens(),
            "stream": self._is_streamed(),
            "store": False,
        }
        if self._with_logits and self._once_in(4):
            body |= {"tools": [{"type": "function", **TOOL}], "tool_choice": "required"}
        return Call.of("/v1/responses", body)

    def message(self) -> Call:
        body: Fields = {
            "model": self._model,
            "messages": self._messages(),
            "max_tokens": self._max_tokens(),
        }
        if self._once_in(6):
            return Call.of("/v1/messages/count_tokens", {k: body[k] for k in ("model", "messages")})
        if self._with_logits and self._once_in(4):
            tool = {"name": "note", "input_schema": SCHEMA}
            body |= {"tools": [tool], "tool_choice": {"type": "any"}}
        return Call.of("/v1/messages", body | {"stream": self._is_streamed()})

    def embedding(self) -> Call:
        kind = self.rng.choice(["float", "base64"])
        return Call.of("/v1/embeddings", {"input": self.text(), "encoding_format": kind})

    def tokenization(self) -> Call:
        return Call.of("/tokenize", {"prompt": self.text()})

    def long(self) -> Call:
        """A stream with more bytes than a connection's buffers hold."""
        body: Fields = {"prompt": self.text(), "ignore_eos": True, "stream": True}
        many = {"n": 4, "max_tokens": 800, "logprobs": 20}
        body |= many if self._with_logits else {"n": 12, "max_tokens": 1900}
        return Call.of("/v1/completions", body)

    def bad(self) -> Call:
        make = self.rng.choice(
            (self._bad_value, self._bad_value, self._bad_json, self._bad_type, self._bad_path)
        )
        return make()

    def _bad_value(self) -> Call:
        fields = self.rng.choice(
            (
                {"max_tokens": -1},
                {"temperature": "hot"},
                {"n": 1000},
                {"prompt": [10**9]},
                {"prompt": "long " * 20_000},
                {"stop": [""]},
                {"best_of": 4, "use_beam_search": True},
                {"structured_outputs": {"regex": "("}},
                {"structured_outputs": {"json": {"type": "array", "uniqueItems": True}}},
            )
        )
        return Call.of("/v1/completions", {"prompt": self.text(), **fields}, 400)

    def _bad_json(self) -> Call:
        body = self.rng.choice((b"", b"{", b"[]", b'{"prompt": "\xff"}', b"[" * 100_000))
        return Call(path="/v1/chat/completions", body=body, statuses=frozenset({400}))

    def _bad_type(self) -> Call:
        return Call(
            path="/v1/messages", body=b"{}", content_type="text/plain", statuses=frozenset({415})
        )

    def _bad_path(self) -> Call:
        body = {"prompt": "a", "model": "nobody"}
        path, model = self.rng.choice((("/v1/nothing", self._model), ("/v1/completions", "nobody")))
        return Call.of(path, body | {"model": model}, 404)

    def _messages(self) -> list[Fields]:
        messages: list[Fields] = [{"role": "user", "content": self.text()}]
        if self._once_in(3):
            answer = {"role": "assistant", "content": "Yes."}
            messages += [answer, {"role": "user", "content": self.text()}]
        return messages

    def _options(self, own: tuple[Fields, ...]) -> Fields:
        body: Fields = {"max_tokens": self._max_tokens(), "stream": self._is_streamed()}
        kinds = ((SAMPLING, 2), (COMMON, 2), (own, 3), (GRAMMARS, 6))
        for choices, once_in in kinds if self._with_logits else kinds[:2]:
            if self._once_in(once_in):
                body |= self.rng.choice(choices)
        if "prompt_logprobs" in body:
            body["stream"] = False  # as in vLLM
        if "tools" in body:  # their grammar excludes another one
            return {k: v for k, v in body.items() if k not in _OF_GRAMMARS | _WORDS}
        if _OF_GRAMMARS & set(body):  # which may need these words
            return {k: v for k, v in body.items() if k not in _WORDS}
        return body

    def _max_tokens(self) -> int:
        return self.rng.randint(1, MAX_ANSWER)

    def _is_streamed(self) -> bool:
        return self.rng.random() < 0.5

    def _once_in(self, number: int) -> bool:
        return self.rng.randrange(number) == 0
