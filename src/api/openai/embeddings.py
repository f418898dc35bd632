"""The route POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.client import EngineClient
from ...core.outputs import RequestOutput
from ...core.requests.pooling import Pooling, PoolingParams
from ...core.requests.request_options import RequestOptions
from ...core.requests.sampling_params import SamplingParams
from ..http.errors import APIError, own_names
from ..serving.context import context_of
from ..serving.reading.request_reading import compute, read_body
from ..serving.request_options import request_options
from ..serving.server_timing import show_times
from ..serving.sse import json_response
from ..serving.streams import check_ends, final_unless_disconnected, submit_all
from .prompts import Prompt, read_prompts, tokenized
from .reading.embeddings import EmbeddingsBody
from .responses import Embedding, EmbeddingsResponse, EmbeddingUsage

NAMES = {"prompt": "input"}
MAX_INPUTS = 2048
"""Maximum number of inputs of one call, as in OpenAI's API."""
_AT_ONCE = 64
"""Maximum number of inputs of one call in the engine, so that one call does not fill its queue."""


async def create_embeddings(request: Request) -> Response:
    """The embeddings of one or several texts."""
    context = context_of(request)
    body = await read_body(request, EmbeddingsBody)
    context.check_model(body.model, is_needed=True)
    engine = context.engine
    pooling = PoolingParams(dimensions=body.dimensions, use_activation=body.normalize is not False)
    pooling.check(engine.info.hidden_size)
    options = request_options(request, body, "embd", context.settings.metadata_headers)
    with own_names(NAMES):
        outputs = await _all_outputs(request, body, engine, options)
    show_times(request.scope, outputs)
    # In a thread, because thousands of vectors take seconds.
    return await anyio.to_thread.run_sync(_answer, outputs, body, pooling, engine.model_name)


async def _all_outputs(
    request: Request, body: EmbeddingsBody, engine: EngineClient, options: RequestOptions
) -> list[RequestOutput]:
    adds = body.add_special_tokens is not False
    prompts = await tokenized(
        await compute(request, _inputs, body), engine, add_special_tokens=adds
    )
    outputs: list[RequestOutput] = []
    for start in range(0, len(prompts), _AT_ONCE):
        outputs += await _outputs(request, engine, prompts[start : start + _AT_ONCE], options)
    return outputs


def _answer(
    outputs: Sequence[RequestOutput], body: EmbeddingsBody, pooling: PoolingParams, model: str
) -> Response:
    def embedding(index: int, output: RequestOutput) -> Embedding:
        assert output.embedding is not None, "a request with pooling ends with its embedding"
        values = pooling.finish(output.embedding)
        is_text = body.encoding_format == "base64"
        return Embedding(index=index, embedding=_as_base64(values) if is_text else list(values))

    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return json_response(
        EmbeddingsResponse(
            data=[embedding(index, output) for index, output in enumerate(outputs)],
            model=model,
            usage=EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )
    )


async def _outputs(
    request: Request, engine: EngineClient, prompts: Sequence[Prompt], options: RequestOptions
) -> list[RequestOutput]:
    params = SamplingParams(max_tokens=0, pooling=Pooling(engine.config.pooling))
    requests = await submit_all(request, prompts, params, options, is_streamed=False)
    outputs = await final_unless_disconnected(request, requests)
    check_ends(outputs, engine)
    return outputs


def _inputs(body: EmbeddingsBody) -> list[Prompt]:
    prompts = read_prompts(body.input, "input")
    if len(prompts) > MAX_INPUTS:
        text = f"input has {len(prompts)} texts, and one call may have {MAX_INPUTS}"
        raise APIError(400, text, param="input")
    return prompts


def _as_base64(values: Sequence[float]) -> str:
    """The values as float32, with the lowest byte first."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")
