"""Prompts of completions and embeddings: read from a body, and tokenized off the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio.to_thread

from ...core.contract.client import EngineClient
from ...core.contract.providers.transforming import RequestText
from ...core.requests.request_options import RequestOptions
from ...core.shell.checking import LONG_TEXT, check_prompt_ids, check_prompt_text
from ..http.errors import APIError
from ..parsing.chosen_parsers import AnswerParsers
from ..parsing.transforms import TransformedAnswers, transform_request
from .reading.bodies import PromptItem

Prompt = str | list[int]


def read_prompts(given: str | list[PromptItem], param: str) -> list[Prompt]:
    """The prompts of a body's field, each a text or token ids.

    Raises APIError for an empty or mixed list.
    """
    if isinstance(given, str):
        return [given]
    kinds = {type(item) for item in given}
    if kinds == {int}:
        return [given]  # type: ignore[list-item]
    if not kinds:
        raise APIError(400, f"{param} is an empty list", param=param)
    if int in kinds:
        raise APIError(400, f"{param} mixes token ids and texts", param=param)
    return list(given)  # type: ignore[arg-type]


async def tokenized(
    prompts: Sequence[Prompt], engine: EngineClient, *, add_special_tokens: bool
) -> Sequence[Prompt]:
    """The prompts as token ids, or unchanged if the engine can tokenize them as well.

    The engine adds special tokens, and tokenizes short texts on the event loop, where many of them
    would delay all other requests. Here a thread does it. Raises InvalidRequestError for a text
    that is too long, before it is tokenized.
    """
    num_chars = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    if add_special_tokens and (len(prompts) == 1 or num_chars < LONG_TEXT):
        return prompts
    for prompt in prompts:
        if isinstance(prompt, str):
            check_prompt_text(prompt, engine.tokenizer, engine.max_model_len)

    encode_one = partial(engine.tokenizer.encode, add_special_tokens=add_special_tokens)

    def encode() -> list[Prompt]:
        return [encode_one(p) if isinstance(p, str) else p for p in prompts]

    return await anyio.to_thread.run_sync(encode)


async def transformed_prompts(
    prompts: Sequence[Prompt],
    engine: EngineClient,
    parsers: AnswerParsers,
    options: RequestOptions,
) -> tuple[Sequence[Prompt], TransformedAnswers | None]:
    """The prompts with their texts replaced. Token ids are shown as text, and stay if it does."""
    if not parsers.transforms:
        return prompts, None
    for prompt in prompts:
        if isinstance(prompt, str):
            check_prompt_text(prompt, engine.tokenizer, engine.max_model_len)
        else:
            check_prompt_ids(prompt, engine.info.vocab_size)

    decode = partial(engine.tokenizer.decode, skip_special_tokens=False)

    def shown() -> list[str]:
        return [p if isinstance(p, str) else decode(p) for p in prompts]

    texts = await anyio.to_thread.run_sync(shown)
    done = transform_request(parsers.transforms, [RequestText(text=one) for one in texts], options)
    encode = partial(engine.tokenizer.encode, add_special_tokens=False)

    def changed() -> list[Prompt]:
        return [
            old if text == new else new if isinstance(old, str) else encode(new)
            for old, text, new in zip(prompts, texts, done.texts, strict=True)
        ]

    return await anyio.to_thread.run_sync(changed), done
