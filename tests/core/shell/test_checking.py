"""Requests are checked once, and refused by engines for which the check does not hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tokenmill
from tokenmill.core.errors import EngineStoppedError
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids

from .test_engine_shell import PROMPT, in_event_loop, make_engine

PACKAGE = Path(tokenmill.__file__).parent


@pytest.mark.parametrize(
    ("vocab_size", "max_model_len", "is_stale"),
    [(1000, 256, False), (1000, 255, False), (1000, 257, True), (999, 256, True), (1001, 9, True)],
)
@in_event_loop
async def test_an_engine_refuses_what_was_checked_for_more_tokens_or_another_vocabulary(
    vocab_size: int, max_model_len: int, is_stale: bool
) -> None:
    async with make_engine() as engine:
        assert (engine.info.vocab_size, engine.max_model_len) == (1000, 256)
        params = SamplingParams(max_tokens=2)
        request = check_ids(PROMPT, params, vocab_size=vocab_size, max_model_len=max_model_len)
        if is_stale:
            with pytest.raises(EngineStoppedError, match="send it again"):
                await engine.running.queue(request, None, 0.0)
        else:
            assert [o async for o in await engine.running.queue(request, None, 0.0)][-1].finished


def test_only_the_check_makes_a_checked_request() -> None:
    makers = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("CheckedRequest")
    }
    assert makers == {"checking.py"}
