"""Ollama's API: /api/chat, /api/generate, /api/tags, /api/show and /api/version.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import msgspec

from ...plugin import (
    ChatAnswer,
    ChatEnd,
    Delta,
    Grammar,
    InvalidRequestError,
    ModelInfo,
    Registry,
    Route,
    RouteAnswer,
    RouteCall,
    RouteChat,
    RouteStream,
    ToolCallDelta,
    collect,
    hookimpl,
    kinds,
)

TOKENMILL_API = (1, 1)
Json = dict[str, Any]
_SAME = ("temperature", "top_p", "top_k", "min_p", "seed", "stop")
_OPTIONS = {name: name for name in (*_SAME, "presence_penalty", "frequency_penalty")}
_OPTIONS |= {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""Sampling parameters by Ollama's names. Other options are mostly settings of llama.cpp."""
_NAMES = {ours: f"options.{theirs}" for theirs, ours in _OPTIONS.items()}
_NAMES |= {"grammar": "format", "response_format": "format", "prompt": "messages"}
_NAMES |= {"chat_template_kwargs.reasoning_effort": "think"}


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | None = None
    reasoning_content: str | None = msgspec.field(default=None, name="thinking")
    images: list[str] | None = None
    tool_calls: list[Json] | None = None


class ShowBody(msgspec.Struct, kw_only=True):
    model: str = ""
    name: str = ""  # of old clients


class AnswerBody(msgspec.Struct, kw_only=True):
    """The fields that chats and prompts share. `keep_alive` has no effect: the model stays."""

    model: str
    stream: bool | None = None
    think: bool | str | None = None
    format: Json | str | None = None
    options: Json | None = None
    keep_alive: float | str | None = None


class ChatBody(AnswerBody, kw_only=True):
    messages: list[Message] | None = None
    tools: list[Json] | None = None


class GenerateBody(AnswerBody, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[str] | None = None


class Ollama:
    """Serves the model to clients of Ollama, such as its packages for Python and JavaScript."""

    def __init__(self) -> None:
        model, self._since = {"model": "model"}, datetime.now(UTC).isoformat()
        chat = model | {"messages": [{"role": "user", "content": "Hi"}]}
        prompt = model | {"prompt": "Hi", "stream": False}
        self.routes = (
            Route(path="/api/chat", handle=_chat, body=ChatBody, example=chat),
            Route(path="/api/generate", handle=_generate, body=GenerateBody, example=prompt),
            Route(path="/api/tags", handle=self._tags),
            Route(path="/api/show", handle=self._show, body=ShowBody, example=model),
            Route(path="/api/version", handle=_version),
        )

    def error(self, status: int, message: str) -> dict[str, str]:
        return {"error": message}

    async def _tags(self, call: RouteCall, body: None) -> RouteAnswer:
        info, names = call.model.info, call.model.names
        facts = {
            "modified_at": self._since,
            "size": info.num_parameters * (4 if info.dtype == "float32" else 2),
            "digest": hashlib.sha256(info.name.encode()).hexdigest(),
            "details": _details(info),
        }
        return RouteAnswer(body={"models": [{"name": n, "model": n, **facts} for n in names]})

    async def _show(self, call: RouteCall, body: ShowBody) -> RouteAnswer:
        model, details = call.model, _details(call.model.info)
        if _untagged(name := body.model or body.name, call) not in model.names:
            return RouteAnswer(body=self.error(404, f"model {name!r} not found"), status=404)
        can = {"tools": model.finds_tool_calls, "thinking": model.finds_reasoning}
        found = {
            "modified_at": self._since,
            "template": model.chat_format.source if model.chat_format else "",
            "details": details,
            "model_info": {
                "general.architecture": details["family"],
                "general.parameter_count": model.info.num_parameters,
                f"{details['family']}.context_length": model.max_model_len,
            },
            "capabilities": ["completion", *(name for name in can if can[name])],
        }
        return RouteAnswer(body=found)


async def _version(call: RouteCall, body: None) -> RouteAnswer:
    return RouteAnswer(body={"version": version("tokenmill")})


async def _chat(call: RouteCall, body: ChatBody) -> RouteAnswer | RouteStream:
    messages = list(map(_with_images, body.messages or ()))
    return await _answer(call, body, messages, body.tools or ())


async def _generate(call: RouteCall, body: GenerateBody) -> RouteAnswer | RouteStream:
    for name in ("suffix", "template", "context", "raw"):
        if getattr(body, name):
            raise InvalidRequestError(f"{name} is not supported; see /v1/completions", param=name)
    given = [Message(role="system", content=body.system)] if body.system else []
    given.append(Message(role="user", content=body.prompt, images=body.images))
    return await _answer(call, body, list(map(_with_images, given if body.prompt else ())))


def _with_images(message: Message) -> Json:
    """The message in the shape of OpenAI's API. Its images, in base64, stand before its text."""
    given = msgspec.structs.asdict(message)
    if images := given.pop("images"):
        parts = [{"type": "image_url", "image_url": f"data:;base64,{data}"} for data in images]
        given["content"] = [*parts, {"type": "text", "text": message.content or ""}]
    return given


async def _answer(
    call: RouteCall, body: AnswerBody, messages: Sequence[Json], tools: Sequence[Json] = ()
) -> RouteAnswer | RouteStream:
    is_chat, options = isinstance(body, ChatBody), body.options or {}
    head = {"model": body.model, "created_at": datetime.now(UTC).isoformat()}
    if (name := _untagged(body.model, call)) in call.model.names and not messages:  # it is loaded
        return RouteAnswer(body=head | _said((), is_chat) | {"done": True, "done_reason": "load"})
    call.name_ignored([f"options.{name}" for name in options if name not in _OPTIONS])
    given = {_OPTIONS[name]: value for name, value in options.items() if name in _OPTIONS}
    sampling = {n: int(v) if isinstance(v, float) and v % 1 == 0 else v for n, v in given.items()}
    most, room = sampling.get("max_tokens"), call.model.max_model_len
    if most in (-1, -2) or (isinstance(most, int) and most >= room):  # no limit
        del sampling["max_tokens"]
    thinking: Json = {} if body.think is None else {"enable_thinking": bool(body.think)}
    thinking |= {"reasoning_effort": body.think} if isinstance(body.think, str) else {}
    chat = RouteChat(
        model=name,
        messages=messages,
        tools=tools,
        sampling=sampling,
        grammar=_grammar(body.format),
        template_kwargs=thinking,
        continue_final_message=[m["role"] for m in messages[-1:]] == ["assistant"],
        is_streamed=body.stream is not False,
        names=_NAMES,
    )
    answer = await call.chat(chat)
    if chat.is_streamed:
        lines = (head | line async for line in _lines(answer, is_chat))
        return RouteStream(pieces=lines, media_type="application/x-ndjson")
    return RouteAnswer(body=head | _said([d async for d in answer], is_chat) | _ending(answer.end))


async def _lines(answer: ChatAnswer, is_chat: bool) -> AsyncIterator[Json]:
    """A line for each piece of text, one for all calls, and the end."""
    calls: list[Delta] = []
    async for delta in answer:
        if isinstance(delta, ToolCallDelta):
            calls.append(delta)
        else:
            yield _said([delta], is_chat) | {"done": False}
    if calls:
        yield _said(calls, is_chat) | {"done": False}
    yield _said((), is_chat) | _ending(answer.end)


def _said(deltas: Iterable[Delta], is_chat: bool) -> Json:
    answer = collect(deltas)
    found: Json = {"content" if is_chat else "response": answer.content or ""}
    if answer.reasoning:
        found["thinking"] = answer.reasoning
    if answer.calls:
        functions = [{"name": c.name, "arguments": _decoded(c.arguments)} for c in answer.calls]
        found["tool_calls"] = [{"function": function} for function in functions]
    return {"message": {"role": "assistant", **found}} if is_chat else found


def _decoded(arguments: str) -> Json:
    with suppress(msgspec.DecodeError):  # num_predict may have cut them
        return msgspec.json.decode(arguments or "{}", type=Json)
    return {}


def _ending(end: ChatEnd) -> Json:
    """The last fields of an answer. Times are in nanoseconds."""
    return {
        "done": True,
        "done_reason": "length" if end.reason == "length" else "stop",
        "total_duration": round(end.total_seconds * 1e9),
        "prompt_eval_count": end.num_prompt_tokens,
        "prompt_eval_duration": round(end.prompt_seconds * 1e9),
        "eval_count": end.num_tokens,
        "eval_duration": round(end.answer_seconds * 1e9),
    }


def _grammar(given: Json | str | None) -> Grammar | None:
    if isinstance(given, dict):
        return Grammar.json_schema(given)
    if given not in (None, "", "json"):
        raise InvalidRequestError(f"format must be 'json' or a schema, got {given!r:.40}")
    return Grammar.json_object() if given else None


def _untagged(name: str, call: RouteCall) -> str:
    return name if name in call.model.names else name.removesuffix(":latest")


def _details(info: ModelInfo) -> Json:
    family = info.architecture.removesuffix("ForCausalLM").lower()
    size = f"{info.num_parameters / 1e9:.1f}B"
    return {"family": family, "parameter_size": size, "quantization_level": info.dtype}


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ROUTE, "ollama", Ollama)
