"""A tokenizer for engines without a model: each character is one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.interfaces import ChatFormat, ChatMessage


class ToyDetokenizer:
    """A Detokenizer that holds nothing back: every token is a whole character."""

    def add(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def finish(self) -> str:
        return ""


class ToyTokenizer:
    """A Tokenizer whose token ids are code points, modulo `vocab_size`."""

    max_chars_per_token = 1
    has_chat_template = True
    chat_format = ChatFormat(source="", variables=frozenset({"messages"}))
    special_token_texts: Mapping[str, str] = {}

    def __init__(self, vocab_size: int = 1000) -> None:
        self.vocab_size = vocab_size

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        return [ord(character) % self.vocab_size for character in text]

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, str]] = (),
    ) -> list[int]:
        text = "".join(f"{m['role']}: {m.get('content') or ''}\n" for m in messages)
        return self.encode(text + ("assistant: " if add_generation_prompt else ""))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> ToyDetokenizer:
        return ToyDetokenizer()
