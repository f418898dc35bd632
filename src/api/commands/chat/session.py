"""A conversation with a model: its messages, its settings and the facts of the last answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....core.requests.sampling_params import SamplingParams
from .connection.partner import ContextFullError, Partner, Piece, Pieces, Usage
from .images import Message, as_parts
from .saving import read_messages, write_messages

FULL = 7 / 8
"""Fraction of the context from which on the oldest turns are dropped."""
ROOMY = 3 / 4
"""Fraction of the context that is left then. Dropping turn by turn would lose the prefix cache for
each message."""


class Session:
    """One conversation. A message joins it together with its answer, so roles alternate."""

    def __init__(
        self,
        partner: Partner,
        *,
        system: str | None = None,
        options: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`options`: sampling parameters."""
        self.partner = partner
        self.system = system
        self.options = {**partner.sampling, **(options or {})}
        self.turns: list[Message] = []
        """The messages after the system message: one of the user, its answer, and so on."""
        self.unanswered: str | None = None
        """The last message, if it has no answer."""
        self.images: list[str] = []
        """The images of the next message, as data URLs."""
        self.last: Statistics | None = None
        self.notices: list[str] = []
        """Notes for the user about the last answer."""
        self._clock = clock
        self._tokens_per_char: float | None = None

    @property
    def messages(self) -> list[Message]:
        """All messages, the system message first."""
        return self._with_system(self.turns)

    @property
    def num_tokens(self) -> int | None:
        """The estimated length of the conversation; None before the first answer."""
        return self._estimate(self.messages)

    def ask(self, text: str) -> Pieces:
        """Send a message. The pieces of the answer join the conversation, even if the iterator is
        closed early or the partner fails.

        Raises TokenmillError.
        """
        self.unanswered, self.notices = text, []
        message: Message = {"role": "user", "content": text}
        if self.images:
            message = {**message, "images": self.images}
        self.last = stats = Statistics(sent_at=self._clock())
        pieces: list[str] = []
        try:
            with closing(self._fitting(message)) as answer:
                for piece in answer:
                    stats.note(piece, self._clock())
                    pieces.append(piece.text)
                    yield piece
        finally:
            self._note_answer(message, "".join(pieces), stats)
        self._note_end(stats)

    def undo(self) -> str | None:
        """Remove the last message and its answer; returns the message."""
        if self.unanswered is not None:
            text, self.unanswered = self.unanswered, None
            return text
        begins = [i for i, message in enumerate(self.turns) if message["role"] == "user"]
        if not begins:
            return None
        message = self.turns[begins[-1]]
        del self.turns[begins[-1] :]
        self.images = list(message.get("images", ()))
        return str(message["content"])

    def clear(self) -> None:
        """Forget all messages except the system message."""
        self.turns, self.unanswered, self.last, self.images = [], None, None, []

    def set_option(self, name: str, value: Any) -> None:
        """Set a sampling parameter; None: as the server has it. Raises InvalidRequestError."""
        if value is None:
            self.options.pop(name, None)
            return
        SamplingParams(**{name: value})
        self.options[name] = value

    def save(self, file: Path) -> None:
        """Write the messages to a file; see `write_messages`. Raises TokenmillError."""
        write_messages(file, self.messages, self.partner.model)

    def load(self, file: Path) -> None:
        """Continue the conversation of a file. A message of the user at its end is unanswered.

        Raises TokenmillError, and then changes nothing.
        """
        messages = read_messages(file)
        self.clear()
        has_system = bool(messages) and messages[0]["role"] == "system"
        self.system = messages.pop(0)["content"] if has_system else None
        if messages and messages[-1]["role"] == "user":
            last = messages.pop()
            self.unanswered, self.images = last["content"], list(last.get("images", ()))
        self.turns = messages

    def _with_system(self, turns: Sequence[Message]) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *turns]

    def _fitting(self, message: Message) -> Pieces:
        """The answer. If the conversation is too long, its oldest turns are dropped.

        They are dropped only if the rest is accepted: a message may be too long alone.
        """
        turns = [*self.turns, message]
        kept = self._shortened(turns, FULL)
        while True:
            try:
                with closing(self._answer(kept)) as answer:
                    for piece in answer:
                        if len(kept) < len(turns):
                            self._drop(len(turns) - len(kept))
                            turns = kept
                        yield piece
                return
            except ContextFullError:
                if len(kept) == 1:
                    raise
                kept = self._shortened(_without_oldest(kept), ROOMY)

    def _answer(self, turns: Sequence[Message]) -> Pieces:
        messages = list(map(as_parts, self._with_system(turns)))
        return self.partner.answer(messages, self.options)

    def _shortened(self, turns: list[Message], limit: float) -> list[Message]:
        """The turns without the oldest, if they are estimated to exceed this fraction of the
        context, or to leave no room for the answer."""
        length = self.partner.context_length
        if length is None or not self._exceeds(turns, limit, length):
            return turns
        while len(turns) > 1 and self._exceeds(turns, ROOMY, length):
            turns = _without_oldest(turns)
        return turns

    def _exceeds(self, turns: Sequence[Message], limit: float, length: int) -> bool:
        size = self._estimate(self._with_system(turns)) or 0
        room: float = length - self.options.get("max_tokens", 0)
        return size > min(limit * length, room)

    def _drop(self, count: int) -> None:
        num_turns = sum(message["role"] == "user" for message in self.turns[:count])
        del self.turns[:count]
        dropped = "oldest turn was" if num_turns <= 1 else f"{num_turns} oldest turns were"
        self.notices.append(f"the context is full: the {dropped} dropped")

    def _note_answer(self, message: Message, answer: str, stats: Statistics) -> None:
        if not answer.strip():
            return
        self.unanswered, self.images = None, []
        self.turns.append(message)
        if stats.usage:  # the answer's tokens may be reasoning, which leaves the conversation
            self._tokens_per_char = stats.usage.num_prompt_tokens / _num_chars(self.messages)
        self.turns.append({"role": "assistant", "content": answer})

    def _note_end(self, stats: Statistics) -> None:
        """Say why an answer ended, if the model did not end it."""
        if stats.finish_reason == "length":
            self.notices.append(f"the answer was cut off: {self._limit(stats)}")
        elif self.unanswered is not None:
            self.notices.append("the answer is empty")

    def _limit(self, stats: Statistics) -> str:
        """The limit that an answer reached: its own, or that of the context."""
        used, length = stats.usage, self.partner.context_length
        size = used.num_prompt_tokens + used.num_answer_tokens if used else 0
        limit = self.options.get("max_tokens")
        if limit is None or (length is not None and size >= length):
            return "the context is full"
        return f"max_tokens={limit}"

    def _estimate(self, messages: Sequence[Message]) -> int | None:
        if self._tokens_per_char is None:
            return None
        return round(_num_chars(messages) * self._tokens_per_char)


def _without_oldest(turns: list[Message]) -> list[Message]:
    """The messages from the second one of the user on, or the last message alone."""
    begins = [i for i, message in enumerate(turns) if i and message["role"] == "user"]
    return turns[begins[0] :] if begins else turns[-1:]


def _num_chars(messages: Sequence[Message]) -> int:
    return sum(len(message["content"]) + len(message["role"]) for message in messages)


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Times and numbers of tokens of one answer."""

    sent_at: float
    first_at: float | None = None
    last_at: float | None = None
    num_pieces: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None

    def note(self, piece: Piece, now: float) -> None:
        """Count a piece that has just arrived."""
        if piece.text or piece.reasoning:
            self.num_pieces += 1
            self.first_at = self.first_at or now
            self.last_at = now
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.usage = piece.usage or self.usage

    def describe(self) -> str:
        if self.first_at is None or self.last_at is None:
            return "no token"
        parts = [f"first token after {self.first_at - self.sent_at:.2f} s"]
        count = self.usage.num_answer_tokens if self.usage else self.num_pieces
        if count > 1 and self.last_at > self.first_at:
            parts.append(f"{(count - 1) / (self.last_at - self.first_at):.1f} tokens/s")
        if self.usage:
            used = self.usage
            parts.append(
                f"{used.num_prompt_tokens} prompt tokens ({used.num_cached_tokens} cached)"
            )
        return ", ".join([*parts, f"{count} answer tokens"])
