"""Checks the messages of a request for the chat template."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....core.errors import InvalidRequestError, named
from ....core.interfaces import ChatMessage
from ....core.wording.suggest import did_you_mean
from .tool_calls import check_tool_calls

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of the OpenAI API, which every model accepts; a template may know more."""
RESULT_ROLES = ("tool", "function")
"""The roles of messages that are tool results."""
NO_IMAGES = "the model's chat template shows no images"
Content = str | list[dict[str, str]]
"""A text, or parts of the types "text" and "image"."""
_REASONING = ("reasoning", "reasoning_content")
"""Two names for the same; templates know one of them."""
_FIELD_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_TEXT_FIELDS = ("content", "name", "tool_call_id", *_REASONING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentForm:
    """The contents of messages that a chat template shows."""

    shows_images: bool = False
    """It shows lists of text and images."""
    needs_parts: bool = False
    """It shows nothing but lists of parts."""

    @property
    def empty(self) -> Content:
        return [_text_part("")] if self.needs_parts else ""


def check_messages(
    messages: Sequence[ChatMessage],
    *,
    known_roles: Collection[str],
    takes_tool_calls: bool,
    form: ContentForm = ContentForm(),
    result_form: ContentForm = ContentForm(),
) -> list[dict[str, Any]]:
    """Return the messages for the template: role, content and, if given, name, reasoning and tools.

    Text parts of a content are joined with newlines, as in vLLM, unless the template shows parts.
    Then images are parts of type "image". `result_form` is the form of tool results. Fields that
    are null or an empty list count as absent. A message with tool calls may lack content: then its
    content is None. The role "developer" becomes "system" if the template does not know it.
    `takes_tool_calls` says whether the template shows tool calls. Raises InvalidRequestError. Its
    param is "messages", or the place of an image that the template does not show.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise _invalid("messages must be a list of at least one message")
    return [
        _check_message(
            message,
            f"messages[{index}]",
            known_roles,
            takes_tool_calls,
            result_form if _is_result(message) else form,
        )
        for index, message in enumerate(messages)
    ]


def check_documents(documents: Sequence[Mapping[str, str]], *, is_shown: bool) -> None:
    """Raise InvalidRequestError if the template does not show documents, or for field names that
    it could write but not look up."""
    if documents and not is_shown:
        raise InvalidRequestError(
            "the model's chat template shows no documents; put them into the messages",
            param="documents",
        )
    for name in {name for document in documents for name in document}:
        if not _FIELD_NAME.fullmatch(name):
            raise InvalidRequestError(
                f"names of a document's fields have letters, digits and _, got {name!r:.40}",
                param="documents",
            )


def _is_result(message: ChatMessage) -> bool:
    return isinstance(message, Mapping) and message.get("role") in RESULT_ROLES


def texts_of(value: Any) -> Iterator[str]:
    """Every text in messages that were checked, the names of arguments included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts_of(name)
            yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


def _check_message(
    message: ChatMessage,
    where: str,
    known_roles: Collection[str],
    takes_tool_calls: bool,
    form: ContentForm,
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _invalid(f"{where} must be an object with role and content")
    given = {name: value for name, value in message.items() if value is not None and value != []}
    checked: dict[str, Any] = {"role": _check_role(given.pop("role", None), where, known_roles)}
    calls = given.pop("tool_calls", None) if checked["role"] == "assistant" else None
    if calls is not None:
        if not takes_tool_calls:
            raise _invalid(
                f"{named(where + '.tool_calls')} cannot be shown to this model, because its "
                "chat template has no tool calls"
            )
        checked["tool_calls"] = check_tool_calls(calls, f"{where}.tool_calls")
    checked["content"] = _check_content(message, where, form, is_needed=calls is None)
    given.pop("content", None)
    checked |= _check_texts(given, where)
    for name, other in zip(_REASONING, reversed(_REASONING), strict=True):
        if name in checked:
            checked.setdefault(other, checked[name])
    return checked


def _check_content(
    message: ChatMessage, where: str, form: ContentForm, *, is_needed: bool
) -> Content | None:
    content = message.get("content")
    if content is not None:
        return _read_content(content, f"{where}.content", form)
    if is_needed:
        raise _invalid(f"{where}.content is missing")
    return None


def _check_texts(given: Mapping[str, Any], where: str) -> dict[str, str]:
    checked = {}
    for name, value in given.items():
        if name not in _TEXT_FIELDS:
            raise _invalid(
                f"{where}.{name} is not supported{did_you_mean(name, ('role', *_TEXT_FIELDS))}"
            )
        if not isinstance(value, str):
            raise _invalid(f"{where}.{name} must be a string")
        checked[name] = value
    return checked


def _check_role(role: object, where: str, known_roles: Collection[str]) -> str:
    if not isinstance(role, str):
        raise _invalid(f"{where}.role must be a string")
    if role not in ROLES and role not in known_roles:
        raise _invalid(f"{where}.role must be one of {', '.join(ROLES)}, got {role[:40]!r}")
    is_unknown = role == "developer" and role not in known_roles
    return "system" if is_unknown else role


def _read_content(content: object, where: str, form: ContentForm) -> Content:
    if isinstance(content, str):
        return [_text_part(content)] if form.needs_parts else content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise _invalid(f"{where} must be a string or a list of parts")
    parts = [_check_part(part, f"{where}[{index}]", form) for index, part in enumerate(content)]
    if form.needs_parts or form.shows_images:
        return parts
    return "\n".join(part["text"] for part in parts)


def _check_part(part: object, where: str, form: ContentForm) -> dict[str, str]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image":
        if not form.shows_images:
            raise InvalidRequestError(NO_IMAGES, param=where)
        return {"type": "image"}
    if not isinstance(part, Mapping) or kind != "text":
        known = '"text" or "image"' if form.shows_images else '"text", the only one supported'
        raise _invalid(f"{where} must be a part of type {known}, got {kind!r:.40}")
    text = part.get("text")
    if not isinstance(text, str):
        raise _invalid(f"{where}.text must be a string")
    return _text_part(text)


def _text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")
