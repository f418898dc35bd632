"""Builds the transforms of the enabled plugins and calls them, in the server's process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...core.contract.parsing.answers import Delta, ToolCallDelta
from ...core.contract.providers.transforming import AnswerTransform, RequestText, Transformed
from ...core.errors import CONTAINED, InvalidRequestError, PluginError, RequestFailedError
from ...core.host.calling.guard import ADMITS, Guard
from ...core.host.plugin_set import PluginSet
from ...core.kinds import TRANSFORM
from ...core.requests.request_options import RequestOptions
from .parser_guards import ParserGuards

_Maker = tuple[Guard, Callable[[], AnswerTransform]]


def build_transforms(plugins: PluginSet, guards: ParserGuards) -> tuple[Guard, ...]:
    """The transforms of all enabled plugins, in the order of the plugins. Raises PluginError."""
    return tuple(
        guards.add(partial(_begin, transform), provider.source, TRANSFORM.name, ADMITS)
        for provider, transform in plugins.build_all(TRANSFORM.name)
    )


@dataclass(frozen=True, slots=True)
class TransformedAnswers:
    """The texts of a request after all transforms, and what changes its answers."""

    texts: Sequence[str]
    makers: Sequence[_Maker]
    """The last transform of the request is the first of its answers."""

    def answer(self) -> AnswerChain:
        """Changes one choice of the answer."""
        return AnswerChain(self.makers)


def transform_request(
    transforms: Iterable[Guard], texts: Sequence[RequestText], options: RequestOptions
) -> TransformedAnswers:
    """Pass the texts through all transforms.

    Raises InvalidRequestError if one refuses the request, and RequestFailedError if one fails.
    """
    makers: list[_Maker] = []
    for guard in transforms:
        done = _run(guard, guard.call, texts, options)
        if isinstance(done, InvalidRequestError):
            raise done
        texts = [replace(old, text=new) for old, new in zip(texts, done.texts, strict=True)]
        if done.answer is not None:
            makers.insert(0, (guard, done.answer))
    return TransformedAnswers([one.text for one in texts], makers)


class AnswerChain:
    """Passes one choice through the transforms, part by part: what they hold back of a part comes
    before the next part. Raises RequestFailedError if a transform fails."""

    def __init__(self, makers: Sequence[_Maker]) -> None:
        self._makers = makers
        self._last: Delta | None = None
        self._stages: list[tuple[Guard, AnswerTransform]] = []

    def feed(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas that are certain because of these."""
        if not self._makers:
            return deltas
        found: list[Delta] = []
        for delta in deltas:
            if self._last is None or _part(delta) != _part(self._last):
                found += self.finish()
                self._stages = [
                    (guard, _run(guard, guard.resume, make)) for guard, make in self._makers
                ]
            self._last = delta
            text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
            for guard, stage in self._stages:
                text = _run(guard, guard.resume, _text_of, stage.feed, text) if text else ""
            if text or (isinstance(delta, ToolCallDelta) and delta.name):
                found.append(_with_text(delta, text))
        return found

    def finish(self) -> list[Delta]:
        """The rest of the part that came last."""
        text = ""
        for guard, stage in self._stages:
            if text:
                text = _run(guard, guard.resume, _text_of, stage.feed, text)
            text += _run(guard, guard.resume, _text_of, stage.finish)
        self._stages = []
        if not text or self._last is None:
            return []
        last = self._last
        if isinstance(last, ToolCallDelta):
            last = replace(last, name=None)
        return [_with_text(last, text)]


def _part(delta: Delta) -> tuple[type, int]:
    return type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0


def _with_text(delta: Delta, text: str) -> Delta:
    if isinstance(delta, ToolCallDelta):
        return replace(delta, arguments=text)
    return replace(delta, text=text)


def _run(guard: Guard, run: Callable[..., Any], *arguments: object) -> Any:
    try:
        return run(*arguments)
    except CONTAINED as error:
        guard.fail(error)
        raise RequestFailedError(f"{guard.source} failed in 'transform'") from error


def _begin(
    transform: Any, texts: Sequence[RequestText], options: RequestOptions
) -> Transformed | InvalidRequestError:
    try:
        done = transform.begin(texts, options)
    except InvalidRequestError as refusal:
        return refusal
    if not isinstance(done, Transformed):
        raise PluginError(f"'begin' must return Transformed, got {done!r:.100}")
    if len(done.texts) != len(texts) or not all(isinstance(text, str) for text in done.texts):
        raise PluginError(f"'begin' must return {len(texts)} texts, got {done.texts!r:.100}")
    return done


def _text_of(function: Callable[..., object], *arguments: object) -> str:
    text = function(*arguments)
    if not isinstance(text, str):
        raise PluginError(f"an answer's transform must return texts, got {text!r:.100}")
    return text
