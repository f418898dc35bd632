"""Reads what a body asks of the engine: chats, sampling parameters and grammars."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ....core.contract.client import EngineClient
from ....core.requests.grammar import Grammar
from ....core.requests.sampling_params import COMPLETIONS, OutputKind, SamplingParams, sampled_in
from ....core.shell.checking import sampling_defaults
from ...chat import messages as chat_messages
from ...chat.conversation import Conversation, Message
from ...chat.grammar_fields import (
    GrammarField,
    GrammarFields,
    Option,
    given_fields,
    schema_grammar,
    structural_tag,
    structured_fields,
)
from ...chat.messages import Images, not_read
from ...chat.sampling import params_with_all_room
from ...chat.start import ChatRequest
from ...chat.tools import ToolUse, definition, tool_use
from ...http.errors import APIError
from ...serving.reading.unknown_fields import check_stream_options, unsupported
from .bodies import (
    AllowedToolChoice,
    ChatBody,
    ChatMessageBody,
    CompletionBody,
    ContentPart,
    ImageURL,
    JSONSchemaFormat,
    NamedToolChoice,
    ResponseFormat,
    SamplingFields,
    TokenizeBody,
)

_NOT_READ = ("input_audio", "audio_url", "video_url", "image_embeds", "file")
_OLDER = ("json", "regex", "choice", "grammar")
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions. The default for chat is all the room in the context."""


def read_chat(body: ChatBody) -> ChatRequest:
    """The chat of /v1/chat/completions. Raises APIError (400)."""
    check_combinations(body)
    _check(body)
    return ChatRequest(
        model=body.model,
        conversation=read_conversation(body),
        tools=read_tool_use(body),
        sampled=_chat_params(body),
        grammar=grammar_fields(body),
        sender=body,
        is_streamed=bool(body.stream),
        thinking_budget=body.thinking_token_budget,
    )


def read_conversation(body: ChatBody | TokenizeBody) -> Conversation:
    """The messages of a body. Raises APIError (400) for parts that are neither text nor image."""
    images = Images()
    messages = [
        _with_images(message, f"messages[{index}].content", images)
        for index, message in enumerate(body.messages or ())
    ]
    return Conversation(
        messages=messages,
        images=images.found,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.reasoning_effort if isinstance(body, ChatBody) else None,
        documents=body.documents,
    )


def _with_images(message: ChatMessageBody, where: str, images: Images) -> ChatMessageBody | Message:
    """The message as it is, unless it has other parts than text."""
    if isinstance(message.content, str) or message.content is None:
        return message
    if all(part.type == "text" for part in message.content):
        return message
    parts = [_part(p, f"{where}[{n}]", images) for n, p in enumerate(message.content)]
    return {**msgspec.structs.asdict(message), "content": parts}


def _part(part: ContentPart, place: str, images: Images) -> chat_messages.ContentPart:
    if part.type == "image_url":
        given = part.image_url
        url = given.url if isinstance(given, ImageURL) else given
        return images.add(url, place, part.uuid)
    if part.type in _NOT_READ:
        raise not_read(place, part.type)
    if part.type == "image":  # the word that chat templates have for it
        raise APIError(400, f"{place}: an image is a part of type 'image_url'", param=place)
    return chat_messages.ContentPart(type=part.type, text=part.text)


def read_tool_use(body: ChatBody | TokenizeBody) -> ToolUse:
    """The tools of a request. Raises APIError (400)."""
    functions = [tool.function for tool in body.tools or ()]
    tools = [definition(f.name, f.description, f.parameters, f.strict) for f in functions]
    if isinstance(body, TokenizeBody):
        return tool_use(tools, None)
    choice = body.tool_choice
    is_parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        return tool_use(tools, None, named=choice.function.name, is_parallel=is_parallel)
    if isinstance(choice, AllowedToolChoice):
        allowed = choice.allowed_tools
        names = [tool.function.name for tool in allowed.tools]
        return tool_use(tools, allowed.mode, allowed=names, is_parallel=is_parallel)
    return tool_use(tools, choice, is_parallel=is_parallel)


def _check(body: ChatBody) -> None:
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise APIError(
            400,
            "max_tokens and max_completion_tokens mean the same and differ; give one of them",
            param="max_completion_tokens",
        )


def _chat_params(body: ChatBody) -> dict[str, Any]:
    max_tokens = body.max_completion_tokens
    return _sampled(body) | {
        "max_tokens": body.max_tokens if max_tokens is None else max_tokens,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }


def completion_params(body: CompletionBody, engine: EngineClient) -> SamplingParams:
    """Sampling parameters of /v1/completions.

    Raises InvalidRequestError or APIError with the field's name.
    """
    defaults = sampling_defaults(engine.config, engine.info)
    default = defaults.get("max_tokens", COMPLETION_MAX_TOKENS)
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = max(int(default), body.min_tokens or 0)
    given = {
        "max_tokens": max_tokens,
        "logprobs": body.logprobs,
        "prompt_logprobs": _scored_prompt(body),
        "grammar": grammar_fields(body).read(),
        "output_kind": OutputKind.DELTA,
    }
    return params_with_all_room(engine, **{**_sampled(body), **given})


def _scored_prompt(body: CompletionBody) -> int | None:
    """The number of log-probabilities per prompt token: an echoed prompt has those of the answer.

    None: the prompt is not scored.
    """
    echoed = body.logprobs if body.echo else None
    wishes = [count for count in (echoed, body.prompt_logprobs) if count is not None]
    return max(wishes, default=None)


def _sampled(body: SamplingFields) -> dict[str, Any]:
    """The sampling parameters that both bodies have; None: not given."""
    sampled = {name: getattr(body, name) for name in sampled_in(COMPLETIONS)}
    return sampled | {"extra_args": body.vllm_xargs or None}


def check_combinations(body: SamplingFields) -> None:
    """Raise APIError (400) for fields that contradict each other, or that cannot be combined."""
    if body.best_of not in (None, 1) and body.best_of != body.n:
        raise unsupported("best_of", "use n")
    check_stream_options(body.stream_options, body.stream)
    if body.prompt_logprobs is not None and body.stream:
        raise unsupported("prompt_logprobs", "leave out stream: true, or use echo with logprobs")


def grammar_fields(body: SamplingFields) -> GrammarFields:
    """The fields of OpenAI and of vLLM, older names included. Raises APIError (400)."""
    given = body.response_format
    asked: list[GrammarField] = []
    if given is not None and given.type != "text":
        asked.append(("response_format", partial(_of_format, given)))
    fields = structured_fields(body.structured_outputs, *asked)
    older = given_fields("guided_", {name: getattr(body, f"guided_{name}") for name in _OLDER})
    options, pattern = list(fields.options), body.guided_whitespace_pattern
    if pattern is not None:
        options.insert(0, Option(name="guided_whitespace_pattern", value=pattern))
    return GrammarFields(found=(*fields.found, *older), options=options)


def _of_format(given: ResponseFormat) -> Grammar:
    if given.type == "json_object":
        return Grammar.json_object()
    if given.type == "structural_tag":
        return structural_tag({"structures": given.structures, "triggers": given.triggers})
    schema, name = given.json_schema or JSONSchemaFormat(), "response_format"
    return schema_grammar(f"{name}.json_schema", name, schema.schema, schema.strict)
