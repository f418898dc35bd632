"""Renders and tokenizes a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
import msgspec

from ...core.contract.client import EngineClient
from ...core.errors import InvalidRequestError
from ...core.requests.given_images import GivenImage
from ...core.requests.media_prompt import MediaPrompt
from ..http.errors import APIError
from ..serving.context import AppContext
from .describing import for_template
from .images import encode_images, images_in_order, read_image

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages, and what their chat template gets besides them."""

    messages: Sequence[msgspec.Struct | Message]
    """With the fields of messages.ChatMessage, or more. None counts as not given."""
    add_generation_prompt: bool | None = None
    """None: unless the final message is continued."""
    continue_final_message: bool | None = None
    template_kwargs: Message | None = None
    reasoning_effort: str | None = None
    documents: Sequence[Message] | None = None
    images: Sequence[GivenImage] = ()
    """The parts of messages have their numbers."""


async def encode_conversation(
    given: Conversation,
    context: AppContext,
    tools: Sequence[Message] = (),
    *,
    sender: str | None,
    cache_salt: str | None = None,
) -> MediaPrompt:
    """The token ids of the messages, with their images. A thread renders and tokenizes, not the
    event loop.

    `tools` are shown to the model, in the shape of OpenAI's API: by the chat template, or by a
    system message that asks for calls in the syntax of the server's parsers. `sender` is the id of
    the API key, whose earlier images may be named. Raises APIError or InvalidRequestError with the
    field's name.
    """
    engine, parsers = context.engine, context.parsers
    if given.images:
        engine.images.check(given.images)
    continues = bool(given.continue_final_message)
    if continues and given.add_generation_prompt:
        raise APIError(
            400,
            "continue_final_message cannot be used with add_generation_prompt",
            param="continue_final_message",
        )
    kwargs, documents = dict(given.template_kwargs or {}), given.documents or ()
    if given.reasoning_effort is not None:
        kwargs["reasoning_effort"] = given.reasoning_effort
    generates = given.add_generation_prompt
    generates = not continues if generates is None else generates

    def encode() -> tuple[list[int], list[GivenImage]]:
        messages = message_fields(given.messages)
        _check_length(messages, (*tools, *documents), engine)
        chat = engine.tokenizer.chat_format
        shown, own_tools = for_template(messages, tools, parsers, chat)
        try:
            return render(shown, own_tools)
        except InvalidRequestError:
            if own_tools or not tools:
                raise
        # The template may refuse system messages, as that of Gemma 2 does.
        return render(*for_template(messages, tools, parsers, chat, "user"))

    def render(
        messages: Sequence[Message], tools: Sequence[Message]
    ) -> tuple[list[int], list[GivenImage]]:
        def encode_chat(messages: Sequence[Message]) -> list[int]:
            return engine.tokenizer.encode_chat(
                messages,
                add_generation_prompt=generates,
                continue_final_message=continues,
                template_kwargs=kwargs,
                tools=tools,
                documents=documents,
            )

        if not given.images:
            return encode_chat(messages), []
        images = images_in_order(messages, given.images)
        return encode_images(messages, images, encode_chat, engine.images.num_places), images

    token_ids, images = await anyio.to_thread.run_sync(encode)
    if not images:
        return MediaPrompt(token_ids=token_ids, items=())
    found = [await read_image(image, context, sender, cache_salt) for image in images]
    return engine.images.placed(token_ids, found)


def message_fields(messages: Sequence[msgspec.Struct | Message]) -> list[dict[str, Any]]:
    """Messages as dicts for the chat template, without the fields that were not given."""
    return [
        {name: value for name, value in msgspec.to_builtins(m).items() if value is not None}
        for m in messages
    ]


def _check_length(
    messages: Sequence[Message], others: Sequence[Message], engine: EngineClient
) -> None:
    """Raise APIError (400) for a conversation that is too long, before it costs time to render."""
    if len(messages) > engine.max_model_len:
        raise APIError(
            400,
            f"there are {len(messages)} messages; the context holds {engine.max_model_len} tokens",
            param="messages",
            code="context_length_exceeded",
        )
    num_chars = sum(map(_num_chars, (*messages, *others)))
    most = engine.max_model_len * engine.tokenizer.max_chars_per_token
    if num_chars > most:
        raise APIError(
            400,
            f"messages, tools and documents have {num_chars} characters; the context of "
            f"{engine.max_model_len} tokens cannot hold more than {most}",
            param="messages",
            code="context_length_exceeded",
        )


def _num_chars(message: Message) -> int:
    if "role" not in message:  # a tool or a document
        return len(msgspec.json.encode(message))
    known = message.get("tool_calls")
    num_chars = len(msgspec.json.encode(known)) if known else 0
    content = message.get("content") or ""
    if isinstance(content, list):
        return num_chars + sum(len(part.get("text") or "") for part in content)
    return num_chars + len(content)
