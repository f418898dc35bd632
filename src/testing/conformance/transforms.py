"""The suite for transforms of requests and answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from ...core.contract.providers.transforming import (
    AnswerTransform,
    RequestText,
    Transform,
    Transformed,
)
from ...core.errors import InvalidRequestError
from ...core.requests.request_options import RequestOptions
from .hosting import take
from .reporting import Report, report_time
from .suites import suite

_TEXTS = (
    "",
    "Write to ann@example.org or +47 22 33 44 55, please.",
    "[name-1] said: {bob@example.com} <x@y.zz> [",
    "Grüße \N{GRINNING FACE} \n\n visa 4111 1111 1111 1111",
)
_ROLES = (None, "user", "assistant", "system", "tool")


def check_it_returns_one_text_for_each(transform: object) -> None:
    """`begin` returns as many texts as it gets, of every role, or refuses with a `param`."""
    one = _made(transform)
    for role in _ROLES:
        for count in range(len(_TEXTS) + 1):
            done = _begin(one, _TEXTS[:count], role)
            assert done is None or len(done.texts) == count, f"{count} texts were given"
            assert done is None or all(isinstance(text, str) for text in done.texts)


@pytest.mark.parametrize("seed", (1, 2, 3))
def check_cuts_change_nothing(transform: object, seed: int) -> None:
    """An answer in other pieces is changed to the same text."""
    done, rng = _begin(_made(transform), _TEXTS), random.Random(seed)
    if done is None or done.answer is None:
        return
    text = _answer_to(done.texts)
    whole, pieces = _read(done.answer(), [text]), _cut(text, rng)
    assert _read(done.answer(), pieces) == whole, f"{pieces} are changed in another way"


def check_requests_do_not_disturb_each_other(transform: object) -> None:
    """Requests and choices at the same time get the answers that they would get alone."""
    one, alone = _made(transform), _made(transform)
    expected = []
    for text in _TEXTS:
        done = _begin(alone, [text])
        expected.append(_answers(done) if done is not None else None)
    both = [_begin(one, [text]) for text in _TEXTS]
    found = [_answers(done) if done is not None else None for done in both]
    assert found == expected, "another request changed the answer"


def check_time_is_reported(transform: object, report: Report) -> None:
    """Report how long `begin` takes for four short texts. There is no limit."""
    one, started = _made(transform), time.perf_counter()
    for _ in range(100):
        _begin(one, _TEXTS)
    report_time(report, "begin()", (time.perf_counter() - started) / 100)


@suite
class TransformConformance:
    """The suite for a transform.

    Subclass it as Test..., with a fixture `transform` that returns the transform, or a function
    that makes it.
    """


def _made(given: object) -> Transform:
    return cast(Transform, take(given))


def _begin(
    transform: Transform, texts: Sequence[str], role: str | None = "user"
) -> Transformed | None:
    """The transform's result; None if it refuses the texts."""
    given = [RequestText(text=text, role=role) for text in texts]
    try:
        done = transform.begin(given, RequestOptions())
    except InvalidRequestError as refusal:
        assert refusal.param, f"a refusal must name a param: {refusal}"
        return None
    assert isinstance(done, Transformed), f"'begin' must return Transformed, got {done!r:.100}"
    return done


def _answers(done: Transformed) -> tuple[Sequence[str], list[str]]:
    """Two choices of a request, of which the pieces come in turns."""
    make: Callable[[], AnswerTransform] | None = done.answer
    if make is None:
        return list(done.texts), []
    choices, text = [make(), make()], _answer_to(done.texts)
    found = ["", ""]
    for piece in text:
        for index, choice in enumerate(choices):
            found[index] += choice.feed(piece)
    return list(done.texts), [
        so_far + choice.finish() for so_far, choice in zip(found, choices, strict=True)
    ]


def _read(answer: AnswerTransform, pieces: Sequence[str]) -> str:
    return "".join([*map(answer.feed, pieces), answer.finish()])


def _answer_to(texts: Sequence[str]) -> str:
    """An answer that repeats the texts of its request."""
    return " ".join((*texts, *_TEXTS))


def _cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.sample(range(len(text)), min(20, len(text))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
