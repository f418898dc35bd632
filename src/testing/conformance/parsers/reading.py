"""Reads answers with a parser under test, and makes answers that are hard to read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ....core.contract.parsing.answer_parsers import Parsing
from ....core.contract.parsing.answer_text import AnswerText
from ....core.contract.parsing.answers import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallDelta,
    ToolDefinition,
)

TOOLS = (ToolDefinition(name="weather"), ToolDefinition(name="clock"))
STRANGER = (ToolDefinition(name="stranger"),)
"""No answer calls this function."""
PLAIN = (
    "It is 12 degrees in Oslo.",
    "a < b, [1, 2] and {x}: see [notes](x) | <b>bold</b>\n\n- item\n",
    "日本 und Österreich 🙂",
    "",
)
"""Texts that are content in every family."""
_FRAGMENTS = (
    "<tool_call>", "</tool_call>", "<function=weather>", "</function>", "[TOOL_CALLS]", "[ARGS]",
    "<|python_tag|>", "<|tool_call>", "<tool_call|>", "<|tool_call_start|>", "<|tool_call_end|>",
    "call:weather{", "<think>", "</think>", "[THINK]", "[/THINK]", '{"name": "weather", ',
    '"arguments": ', '"parameters": ', '{"city": "Oslo"}', "}", "{", "[", "]", '"', "\\", ";", ",",
    "weather", "clock", '(city="Oslo")', "\n", " ", "word", "é", "<|", "<tool_",
)  # fmt: skip
_WHOLE = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    '{"name": "weather", "parameters": {"city": "Oslo"}}',
    '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]',
    '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}',
    '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>',
    '[weather(city="Oslo"), clock()]',
    "<think>\nso\n</think>\n\nOslo",
)
Make = Callable[[AnswerText], Parsing]


@dataclass(slots=True)
class Reading:
    """One answer while it is read: what its deltas say so far."""

    make: Make
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    answer: AnswerText = field(default_factory=AnswerText)
    faults: list[str] = field(default_factory=list)
    is_endless: bool = False
    """The parser yields deltas without reading."""
    _parsing: Iterator[Delta | None] = field(init=False)
    _num_deltas: int = 0
    _num_chars: int = 0

    def __post_init__(self) -> None:
        self._parsing = iter(self.make(self.answer))

    @property
    def said(self) -> tuple[str, str, list[tuple[str, str]]]:
        return self.content, self.reasoning, self.calls

    def feed(self, piece: str) -> None:
        self.answer.append(piece)
        self._num_chars += len(piece)
        self._pull()

    def finish(self) -> None:
        self.answer.close()
        self._pull()
        self.content += self.answer.take(len(self.answer.unread))

    def _pull(self) -> None:
        for delta in self._parsing:
            if delta is None:
                return
            self._num_deltas += 1
            if self._num_deltas > 8 * self._num_chars + 8:
                self.is_endless = True
                return
            self._add(delta)
        self.content += self.answer.take(len(self.answer.unread))

    def _add(self, delta: Delta) -> None:
        match delta:
            case ContentDelta(text):
                self.content += text
            case ReasoningDelta(text):
                self.reasoning += text
            case ToolCallDelta(index, name, arguments):
                if name is not None:
                    self.calls.append((name, ""))
                if index != len(self.calls) - 1:
                    self.faults.append(f"{delta} comes after {len(self.calls)} calls")
                    return
                self.calls[index] = (self.calls[index][0], self.calls[index][1] + arguments)


def read(make: Make, pieces: Sequence[str]) -> Reading:
    """Read a whole answer that comes in these pieces."""
    reading = Reading(make)
    for piece in pieces:
        reading.feed(piece)
    reading.finish()
    return reading


def hard_answers(seed: int, count: int = 60) -> list[str]:
    """Answers with calls, parts of calls, and marks of many families in the wrong places."""
    rng = random.Random(seed)
    mixed = ["".join(rng.choices(_FRAGMENTS, k=rng.randint(1, 12))) for _ in range(count)]
    ended = [text[: rng.randint(1, len(text))] for text in _WHOLE for _ in range(3)]
    pairs = [a + rng.choice(("", "\n", " and ")) + b for a in _WHOLE for b in _WHOLE]
    return [*_WHOLE, *PLAIN, *mixed, *ended, *pairs]


def cut(text: str, rng: random.Random) -> list[str]:
    """The text in pieces of random lengths."""
    longest, pieces, at = rng.choice((1, 3, 20)), [], 0
    while at < len(text):
        size = rng.randint(1, longest)
        pieces.append(text[at : at + size])
        at += size
    return pieces
