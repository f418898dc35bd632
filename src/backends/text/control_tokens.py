"""Keeps text in messages from becoming control tokens, while text of the chat template may.

A token is a control token if it is marked special, or if the chat template contains its text: some
models do not mark tokens such as "<|User|>" as special. The steps:

1. Before rendering, the text of every control token in a message is wrapped in two mark characters
   that occur nowhere else. After rendering, unmarked control tokens are the template's.
2. The rendering is split at the template's control tokens, as the tokenizer does.
3. The stretches between them are encoded by a tokenizer that finds no control tokens.

So the model reads marked text as ordinary text. A chat without such text gets exactly the tokens
that the tokenizer gives for the whole rendering.

In an assistant's message only special tokens and those of images are marked: the model wrote
"<think>" as a token, so it stays one. This does not protect against a template that removes
characters from messages.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ...core.errors import ConfigError, InvalidRequestError
from .library_errors import failures_as
from .plain_text import mid_text_tokenizer, plain_text_tokenizer

_MAX_CHARS = 256
"""Bounds the nesting of the regular expression that finds them; known ones have at most 100."""
_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_OTHER_SPACES = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
_WHITESPACE = "\t\n\v\f\r " + _OTHER_SPACES + "".join(map(chr, range(0x2000, 0x200B)))
"""Unicode White_Space, which tokens with lstrip or rstrip remove; str.strip() removes more."""

_IMAGE_ENDS = ("<start_of_image>", "<end_of_image>")
"""Tokens of Gemma 3. Its processor writes blank lines before the first and after the second, and
they join with other ends of lines, so they are added before the text is encoded."""

_SHAPE = ("role", "tool_calls")
"""Fields of a message that have words of the API, which templates look up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Characters that occur neither in a chat's messages nor in its template."""

    open: str
    close: str
    end_of_message: str


class ControlTokens:
    """The control tokens of one tokenizer.

    `template_text` is all text that the chat template itself can write; `image_text` is a chat with
    an image, and the same without it. `unk` is the text of the
    token for unknown text; it is used if the tokenizer's model does not name that token. `source`
    names the model in errors. Raises ConfigError for a control token that is much too long.
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        template_text: str,
        unk: str | None,
        source: str,
        image_text: tuple[str, str] = ("", ""),
    ) -> None:
        self._tokens = {
            token.content: (index, token)
            for index, token in backend.get_added_tokens_decoder().items()
            if token.special or (token.content.strip() and token.content in template_text)
        }
        self._longest = max(map(len, self._tokens), default=0)
        if self._longest > _MAX_CHARS:
            raise ConfigError(
                f"{source} has a control token of {self._longest} characters, more than "
                f"{_MAX_CHARS}"
            )
        shown, without = image_text
        special = [
            text
            for text, (_, token) in self._tokens.items()
            if token.special or shown.count(text) > without.count(text)
        ]
        begin, end = _IMAGE_ENDS
        has_both = begin in self._tokens and backend.token_to_id(end) is not None
        self._shows_image = begin if has_both else None
        self._pattern = _any_of(self._tokens)
        self._find_any = re.compile(self._pattern)
        self._find_special = re.compile(_any_of(special))
        self._sorted = sorted(self._tokens)
        self._sorted_reversed = sorted(text[::-1] for text in self._tokens)
        self._own_chars = set(template_text).union(*self._tokens)
        unknown = getattr(backend.model, "unk_token", unk)
        ids = {text: index for text, (index, _) in self._tokens.items() if text != unknown}
        self._never_from_text = frozenset(ids.values())
        self._backend = backend
        self._plain = plain_text_tokenizer(backend, self._tokens)
        self._mid_text = mid_text_tokenizer(self._plain, self._tokens)

    def marks_for(self, texts: Iterable[str]) -> Marks:
        """Choose mark characters for a chat with these texts.

        Raises InvalidRequestError if none are left.
        """
        used = self._own_chars.union(*texts)
        unused = (char for char in map(chr, _PRIVATE_USE) if char not in used)
        marks = list(itertools.islice(unused, 3))
        if len(marks) < 3:
            raise InvalidRequestError("messages use every private-use character", param="messages")
        return Marks(open=marks[0], close=marks[1], end_of_message=marks[2])

    def mark(self, message: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
        """Return the message with marks around control tokens; most messages have none."""
        find = self._find_special if message["role"] == "assistant" else self._find_any

        def marked(value: Any) -> Any:
            return self._mark_value(value, find, marks)

        def marked_call(call: Mapping[str, Any]) -> dict[str, Any]:
            function = {name: marked(value) for name, value in call["function"].items()}
            given = {"id": marked(call["id"])} if "id" in call else {}
            return {**given, "type": call["type"], "function": function}

        def marked_part(part: Mapping[str, Any]) -> dict[str, Any]:
            texts = {name: marked(value) for name, value in part.items() if name != "type"}
            return {"type": part["type"], **texts}

        checked = {name: marked(value) for name, value in message.items() if name not in _SHAPE}
        if isinstance(parts := message.get("content"), list):
            checked["content"] = [marked_part(part) for part in parts]
        if "tool_calls" in message:
            checked["tool_calls"] = [marked_call(call) for call in message["tool_calls"]]
        return {"role": message["role"], **checked}

    def mark_fields(self, fields: Mapping[str, Any], marks: Marks) -> dict[str, Any]:
        """Return fields, such as the definition of a tool, with marks around control tokens."""
        marked: dict[str, Any] = self._mark_value(dict(fields), self._find_any, marks)
        return marked

    def mark_values(self, fields: Mapping[str, str], marks: Marks) -> dict[str, str]:
        """Return fields whose names the template looks up, with marks in their values only."""
        find = self._find_any
        return {name: self._mark_text(value, find, marks) for name, value in fields.items()}

    def encode_marked(self, rendered: str, marks: Marks) -> list[int]:
        """Encode a rendering; only the template's own control tokens become control tokens."""
        rendered = self.frame_images(rendered, marks)
        if marks.open not in rendered and marks.close not in rendered:
            return self._encode_unmarked(rendered)
        ids: list[int] = []
        before: AddedToken | None = None
        for number, (text, control) in enumerate(self._stretches(rendered, marks)):
            index, after = self._tokens.get(control, (None, None))
            stretch = _trimmed(text, before, after)
            backend = self._mid_text if number else self._plain
            ids += self._encode_stretch(backend, stretch, "messages")
            ids += [] if index is None else [index]
            before = after
        return ids

    def frame_images(self, text: str, marks: Marks | None = None) -> str:
        """The text with blank lines around each unmarked token that shows an image, if the model's
        processor writes them."""
        if self._shows_image is None or self._shows_image not in text:
            return text
        unmarked = "" if marks is None else f"(?<!{marks.open})"
        framed = f"\n\n{self._shows_image}\n\n"
        return re.sub(unmarked + re.escape(self._shows_image), framed, text)

    def encode_plain(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encode a text without control tokens, except those that are added around it."""
        ids = self._encode_stretch(self._plain, text, "prompt")
        return encode(self._plain, text, add_special_tokens=True) if add_special_tokens else ids

    def _mark_value(self, value: Any, find: re.Pattern[str], marks: Marks) -> Any:
        if isinstance(value, str):
            return self._mark_text(value, find, marks)
        if isinstance(value, list):
            return [self._mark_value(item, find, marks) for item in value]
        if isinstance(value, dict):
            return {
                self._mark_value(name, find, marks): self._mark_value(inner, find, marks)
                for name, inner in value.items()
            }
        return value

    def _mark_text(self, text: str, find: re.Pattern[str], marks: Marks) -> str:
        marked = find.sub(lambda match: marks.open + match[0] + marks.close, text)
        core = text.strip()
        if not self._may_join(core):
            return marked
        before, after = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
        inner = marked[before : len(marked) - after]
        return text[:before] + marks.open + inner + marks.close + text[len(text) - after :]

    def _may_join(self, core: str) -> bool:
        """Whether template text next to this text could complete it to a control token."""
        cuts = range(1, min(len(core), self._longest) + 1)
        if any(
            _starts_longer_one(core[-cut:], self._sorted)
            or _starts_longer_one(core[:cut][::-1], self._sorted_reversed)
            for cut in cuts
        ):
            return True
        return 0 < len(core) < self._longest and any(core in text for text in self._tokens)

    def _stretches(self, rendered: str, marks: Marks) -> list[tuple[str, str]]:
        """Return pairs of a text without marks, and the template's control token after it or ""."""
        either = f"[{marks.open}{marks.close}]"
        marked = f"{marks.open}({self._pattern}){marks.close}"
        stretches, texts, at = [], [], 0
        for match in re.finditer(f"{marked}|{either}|({self._pattern})", rendered):
            texts += [rendered[at : match.start()], match[1] or ""]
            at = match.end()
            if match[2]:
                stretches.append(("".join(texts), match[2]))
                texts = []
        return [*stretches, ("".join([*texts, rendered[at:]]), "")]

    def _encode_unmarked(self, rendered: str) -> list[int]:
        ids = encode(self._backend, rendered, add_special_tokens=False)
        found = sum(index in self._never_from_text for index in ids)
        if found > sum(1 for _ in self._find_any.finditer(rendered)):
            raise _unwritable("messages")
        return ids

    def _encode_stretch(self, backend: Tokenizer, text: str, param: str) -> list[int]:
        """Encode text without control tokens; raise InvalidRequestError if one appears anyway.

        A normalizer can produce one, or an ordinary word of the vocabulary with the same text.
        """
        ids = encode(backend, text, add_special_tokens=False)
        if not self._never_from_text.isdisjoint(ids):
            raise _unwritable(param)
        return ids


def _starts_longer_one(start: str, texts: Sequence[str]) -> bool:
    """Whether one of these sorted texts begins with `start` and is longer."""
    place = bisect.bisect_right(texts, start)
    return place < len(texts) and texts[place].startswith(start)


def encode(backend: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Encode a text, as a batch of one, because only batches release the GIL.

    Raises InvalidRequestError if the tokenizer cannot: some have no token for unknown text.
    """
    with failures_as(_cannot_encode):
        [encoding] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids


def _cannot_encode(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"this model's tokenizer cannot encode the text: {reason}")


def _unwritable(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{param}: the text has a control token that this model cannot encode as plain text",
        param=param,
    )


def _any_of(texts: Iterable[str]) -> str:
    """Return a regular expression that matches the longest of the texts; without texts, nothing.

    It contains common prefixes once, so that a search takes no longer with a thousand tokens.
    """
    ordered = sorted(set(texts))
    return _branches(ordered) if ordered else "(?!)"


def _branches(texts: list[str]) -> str:
    """Return an expression for sorted, unique texts; if the first is empty, it is optional."""
    groups = [list(group) for _, group in itertools.groupby(texts, key=lambda text: text[:1])]
    optional = groups.pop(0) if groups[0] == [""] else None
    if not groups:
        return ""
    branches = []
    for group in groups:
        shared = _shared_beginning(group[0], group[-1])
        branches.append(re.escape(shared) + _branches([text[len(shared) :] for text in group]))
    return f"(?:{'|'.join(branches)}){'?' if optional else ''}"


def _shared_beginning(one: str, other: str) -> str:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(char for char, _ in pairs)


def _trimmed(text: str, before: AddedToken | None, after: AddedToken | None) -> str:
    """Return the text between two control tokens without the whitespace that they remove."""
    text = text.lstrip(_WHITESPACE) if before is not None and before.rstrip else text
    return text.rstrip(_WHITESPACE) if after is not None and after.lstrip else text
