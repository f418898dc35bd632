"""Passes the messages or prompts of a body through the transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...core.contract.transforming import RequestText
from ...core.host.answer_parsers import AnswerParsers
from ...core.host.transforms import TransformedAnswers, transform_request
from ...core.interfaces import Tokenizer
from ...core.request_options import RequestOptions
from .prompts import Prompt
from .reading.bodies import ChatMessageBody

_TEXTS = ("content", "reasoning", "reasoning_content")


def transform_messages(
    messages: Sequence[ChatMessageBody], parsers: AnswerParsers, options: RequestOptions
) -> TransformedAnswers:
    """Replace the texts of the messages. Raises what `transform_request` raises."""
    if not parsers.transforms:
        return TransformedAnswers()
    texts: list[RequestText] = []
    setters: list[Callable[[str], None]] = []

    def show(role: str, text: object, change: Callable[[str], None]) -> None:
        if isinstance(text, str):
            texts.append(RequestText(text=text, role=role))
            setters.append(change)

    for message in messages:
        for name in _TEXTS:
            show(message.role, getattr(message, name), partial(setattr, message, name))
        for part in message.content if isinstance(message.content, list) else ():
            show(message.role, part.text, partial(setattr, part, "text"))
        for call in message.tool_calls or ():
            function: Any = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                own = partial(function.__setitem__, "arguments")
                show(message.role, function.get("arguments"), own)
    done = transform_request(parsers.transforms, texts, options)
    for change, text in zip(setters, done.texts, strict=True):
        change(text)
    return done


def transform_prompts(
    prompts: Sequence[Prompt], parsers: AnswerParsers, tokenizer: Tokenizer, options: RequestOptions
) -> tuple[Sequence[Prompt], TransformedAnswers]:
    """The prompts with their texts replaced. Token ids are shown as text, and stay if it does."""
    if not parsers.transforms:
        return prompts, TransformedAnswers()
    shown = [
        p if isinstance(p, str) else tokenizer.decode(p, skip_special_tokens=False) for p in prompts
    ]
    done = transform_request(parsers.transforms, [RequestText(text=one) for one in shown], options)
    changed = [
        prompt if old == new
        else new if isinstance(prompt, str)
        else tokenizer.encode(new, add_special_tokens=False)
        for prompt, old, new in zip(prompts, shown, done.texts, strict=True)
    ]  # fmt: skip
    return changed, done
