"""Routes that do not generate: health, metrics, models, tokens and plugins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..core.contract.client import EngineClient, Load
from ..core.contract.explanation import Explanation
from ..core.host.metrics.hook_samples import with_hook_stats
from ..core.shell.checking import check_prompt_text
from ..core.shell.home import DRAINING
from ..version import __version__
from .chat.conversation import encode_conversation
from .http.errors import ERROR_SHAPES, APIError, shutting_down
from .http.keys.auth import key_holder
from .http.live_page import FILES
from .openai.reading.bodies import DetokenizeBody, TokenizeBody
from .openai.reading.requests import read_conversation, read_tool_use
from .openai.responses import (
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
    TokenizerInfoResponse,
)
from .openapi import openapi_document
from .serving.context import AppContext, context_of
from .serving.reading.request_reading import compute, read_body

UNHEALTHY_SECONDS = 60.0
"""Shortest stall that /health reports. Its caller may restart the server, and a first step with a
long prompt on a slow machine may take longer than --stall-timeout."""
MAX_SLOWEST = 1000
"""Maximum number of requests that one answer explains."""
INDEX = """tokenmill {version} serves {model}

POST /v1/chat/completions   POST /v1/completions   GET /v1/models
POST /v1/responses          POST /v1/embeddings
POST /v1/messages           POST /v1/messages/count_tokens
POST /tokenize              POST /detokenize       GET /tokenizer_info
GET  /health  /ready  /load  /metrics  /plugins  /version  /openapi.json{page}
{added}"""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus's text format."""


async def index(request: Request) -> Response:
    """The live page for browsers; for other clients a list of the server's paths, as text."""
    context = context_of(request)
    if context.settings.ui and "text/html" in request.headers.get("accept", ""):
        return await FILES.page(request)
    model, page = context.engine.model_name, "  /docs  /live" if context.settings.ui else ""
    shapes = getattr(request.app.state, ERROR_SHAPES)
    added = "  ".join(path for path in shapes if not path.endswith("/"))
    text = INDEX.format(version=__version__, model=model, page=page, added=added and f"{added}\n")
    return PlainTextResponse(text)


async def health(request: Request) -> Response:
    """200 while the engine works or idles; 503 when it is dead or has work but makes no step."""
    context = context_of(request)
    load = context.engine.load()
    _check_alive(load)
    _check_progress(load, max(UNHEALTHY_SECONDS, context.settings.stall_timeout))
    return Response()


async def ready(request: Request) -> Response:
    """200 while the server accepts new requests; 503 while it drains, or if the engine is dead or
    stalled."""
    context = context_of(request)
    load = context.engine.load()
    if load.is_draining:
        raise shutting_down(DRAINING)
    _check_alive(load)
    _check_progress(load, context.settings.stall_timeout)
    return Response()


def _check_alive(load: Load) -> None:
    """Raise APIError (503) if the engine is being restarted or has stopped for good."""
    if load.is_restarting:
        raise APIError(503, "the engine is being restarted", code="restarting", retry_after=5.0)
    if not load.is_alive:
        raise APIError(503, "the engine stopped", code="dead")


def _check_progress(load: Load, stall_timeout: float) -> None:
    """Raise APIError (503) if the engine has work and makes no step for too long."""
    if load.is_stalled(stall_timeout):
        raise APIError(
            503,
            f"no step was completed for {load.stalled_for:.0f} seconds",
            code="stalled",
            retry_after=5.0,
        )


async def load(request: Request) -> Response:
    """The engine's current load."""
    engine = context_of(request).engine
    await engine.refresh()
    return _json(engine.load())


async def version(request: Request) -> Response:
    """The version of tokenmill."""
    return _json({"version": __version__})


async def metrics(request: Request) -> Response:
    """Metrics in Prometheus's text format."""
    context = context_of(request)
    engine, parsers = context.engine, context.parsers.guards
    await engine.refresh()
    text = with_hook_stats(engine.render_metrics(), parsers.hook_stats(), engine)
    return Response(text, media_type=METRICS_TYPE)


async def models(request: Request) -> Response:
    """The model that is served, once under each of its names."""
    context = context_of(request)
    return _json(ModelList(data=[_card(context, name) for name in context.model_names]))


async def model(request: Request) -> Response:
    """One model by its name; 404 for any other. Without a name, the list."""
    context = context_of(request)
    name = request.path_params["name"]
    if not name:
        return await models(request)
    context.check_model(name)
    return _json(_card(context, name))


async def plugins(request: Request) -> Response:
    """Installed plugins, and the calls, seconds and failures of each hook."""
    context = context_of(request)
    await context.engine.refresh()
    return _json(_describe_plugins(context))


async def debug_state(request: Request) -> Response:
    """The inside of the engine: configuration, model, load, live requests and plugins."""
    context = context_of(request)
    engine = context.engine
    await engine.refresh()
    state = {
        "version": __version__,
        "config": engine.config,
        "model": engine.info,
        "max_model_len": engine.max_model_len,
        "load": engine.load(),
        "requests": engine.live_requests(),
        **_describe_plugins(context),
    }
    return _json(state)


async def reset_prefix_cache(request: Request) -> Response:
    """Forget the blocks of the prefix cache that no request holds, in all engines. The answer is
    200 even if some are held, as in vLLM, and 503 if no engine answers."""
    if request.query_params.get("reset_running_requests", "false").lower() in ("true", "1"):
        raise APIError(
            400,
            "requests that run keep their blocks: leave out reset_running_requests",
            param="reset_running_requests",
        )
    await context_of(request).engine.reset_prefix_cache()
    return Response()


async def slowest_requests(request: Request) -> Response:
    """The time of the slowest live and recent requests by cause, of one API key or of all."""
    count = request.query_params.get("slowest", "20")
    if not count.isdecimal() or len(count) > 9 or not 0 < int(count) <= MAX_SLOWEST:
        raise APIError(
            400, f"slowest must be a number from 1 to {MAX_SLOWEST}, got {count!r}", param="slowest"
        )
    engine, key = context_of(request).engine, request.query_params.get("key")
    if key is None:
        return _explained(await engine.slowest(int(count)))
    found = await engine.slowest(MAX_SLOWEST)
    return _explained([one for one in found if one.api_key_id == key][: int(count)])


async def explain_request(request: Request) -> Response:
    """Explain where the time of a live or recent request went, for each of its choices."""
    engine, request_id = context_of(request).engine, request.path_params["name"]
    found = await engine.explain(request_id)
    if not found:
        off = "" if engine.config.step_log_size else ", which --step-log-size 0 switches off"
        raise APIError(404, f"the request {request_id!r} is not in the step log{off}")
    return _explained(found)


def _explained(found: Sequence[Explanation]) -> Response:
    parts = [
        msgspec.to_builtins(one)
        | {"causes": [{"cause": name, "seconds": seconds} for name, seconds in one.causes]}
        for one in found
    ]
    return _json({"requests": parts})


def _describe_plugins(context: AppContext) -> dict[str, object]:
    """The plugins of the engine, and of this process."""
    engine, parsers = context.engine, context.parsers.guards
    return {
        "plugins": parsers.with_failures(engine.plugins()),
        "hooks": (*engine.hook_stats(), *parsers.hook_stats()),
    }


async def tokenize(request: Request) -> Response:
    """The token ids of a text or a conversation."""
    context = context_of(request)
    body = await read_body(request, TokenizeBody)
    context.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise APIError(400, "give either prompt or messages", param="prompt")
    engine = context.engine
    if body.messages is not None:
        tools = (await compute(request, read_tool_use, body)).shown
        conversation = await compute(request, read_conversation, body)
        holder = key_holder(request.scope)
        sender = None if holder is None else holder.id
        prompt = await encode_conversation(conversation, context, tools, sender=sender)
        tokens = list(prompt.token_ids)
    else:
        tokens = await _encode(body.prompt or "", body.add_special_tokens is not False, engine)

    def describe() -> Response:
        strings = None
        if body.return_token_strs:
            strings = [engine.tokenizer.token_bytes(t).decode("utf-8", "replace") for t in tokens]
        found = TokenizeResponse(
            count=len(tokens),
            max_model_len=engine.max_model_len,
            tokens=tokens,
            token_strs=strings,
        )
        return _json(found)

    return await anyio.to_thread.run_sync(describe)


async def _encode(text: str, with_special: bool, engine: EngineClient) -> list[int]:
    """The token ids of a text. A thread tokenizes, not the event loop."""
    check_prompt_text(text, engine.tokenizer, engine.max_model_len)
    return await anyio.to_thread.run_sync(
        lambda: engine.tokenizer.encode(text, add_special_tokens=with_special)
    )


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    context = context_of(request)
    body = await read_body(request, DetokenizeBody)
    context.check_model(body.model)
    engine = context.engine
    vocab_size = engine.info.vocab_size

    def decode() -> Response:
        if body.tokens and not (min(body.tokens) >= 0 and max(body.tokens) < vocab_size):
            raise APIError(
                400,
                f"tokens has ids that are not in the vocabulary (0 to {vocab_size - 1})",
                param="tokens",
            )
        text = engine.tokenizer.decode(body.tokens, skip_special_tokens=False)
        return _json(DetokenizeResponse(prompt=text))

    return await anyio.to_thread.run_sync(decode)


async def tokenizer_info(request: Request) -> Response:
    """The special tokens and the chat template, for clients that render chats themselves."""
    engine = context_of(request).engine
    found, chat = engine.tokenizer.special_token_texts, engine.tokenizer.chat_format
    info = TokenizerInfoResponse(
        tokenizer_class=type(engine.tokenizer).__name__,
        model_max_length=engine.max_model_len,
        **{name: found.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")},
        chat_template=chat.source if chat else None,
    )
    return _json(info)


async def openapi(request: Request) -> Response:
    """The OpenAPI document, generated from the types of bodies and answers."""
    context = context_of(request)
    # A prefix of the request is that of an app that mounts this one.
    prefix = request.scope.get("root_path") or context.settings.root_path
    settings = replace(context.settings, root_path=prefix)
    return _json(openapi_document(request.app.routes, settings, context.engine.model_name))


def _card(context: AppContext, name: str) -> ModelCard:
    engine = context.engine
    return ModelCard(
        id=name,
        created=context.started_at,
        root=engine.info.name,
        max_model_len=engine.max_model_len,
    )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
