"""The toy model with a vocabulary that can write JSON, and an engine of its own."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.backends.model_engine import make_driver, make_request
from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG as TINY
from tokenmill.backends.grammar.base import GrammarSpec
from tokenmill.backends.grammar.grammars import Grammars
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.engine.request import Request
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.sampling_params import SamplingParams

WORDS = ('{"', '":', '", "', "true", "false", "null", '"}', "[]", "{}", "name", "é", "日本", "12")
SPEC = GrammarSpec(
    token_bytes=(
        *(bytes([byte]) for byte in range(256)),
        *(word.encode() for word in WORDS),
        *(b"",) * (287 - 256 - len(WORDS)),
        b"</s>",
    ),
    special_ids=(287,),
    end_ids=(287,),
)
END = 287
CONFIG = replace(TINY, head_size=16, vocab_size=len(SPEC.token_bytes), max_position_embeddings=1024)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["a", "b", 3, None]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "kind", "flags"],
    "additionalProperties": False,
}


@functools.cache
def checkpoint() -> Checkpoint:
    found = random_checkpoint(CONFIG, seed=0)

    class WithEnd(type(found)):  # type: ignore[misc]
        eos_token_ids = (END,)

    ending: Checkpoint = WithEnd(CONFIG, 0)
    return ending


@functools.cache
def grammars() -> Grammars:
    return Grammars(lambda: LLGuidance(SPEC))


def text_of(token_ids: Sequence[int]) -> str:
    return b"".join(SPEC.token_bytes[i] for i in token_ids if i != END).decode()


def serve(
    params: Sequence[SamplingParams],
    *,
    plugins: Sequence[object] = (),
    prompt_length: int | None = None,
    per_step: int = 2,
    **options: Any,
) -> list[Request]:
    """Serve one request per parameters; `per_step` arrive in each step. Each has a prompt of its
    own, which gets longer and longer unless it has a length."""
    config = EngineConfig(
        **{"device": "cpu", "num_gpu_blocks_override": 256, "swap_space": 2**-8} | options
    )
    host = PluginHost.load(config, extra=plugins)
    driver = make_driver(checkpoint(), config, host, host.speculator, grammars=grammars())
    requests = [
        make_request(
            f"request-{i}",
            _prompt(i, prompt_length),
            one,
            one.seed or i,
            info=driver.executor.info,
            config=config,
        )
        for i, one in enumerate(params)
    ]
    driver.run(requests, per_step=per_step)
    return requests


def _prompt(index: int, length: int | None) -> Sequence[int]:
    if length is None:
        return range(1, 8 + 5 * index)
    return random.Random(index).choices(range(1, 128), k=length)


def answer(request: Request) -> Any:
    """The answer's JSON value."""
    return json.loads(text_of(request.token_ids[request.num_prompt_tokens :]))
