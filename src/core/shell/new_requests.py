"""Makes the engine's requests for a checked one."""

from __future__ import annotations

import random
import uuid

from ..config import EngineConfig
from ..contract.policy import Arrival
from ..engine.blocks.pool import hash_root
from ..engine.request import PromptGroup, Request
from ..host.logits_processors import ProcessorUse
from ..interfaces import ModelInfo
from .checking import CheckedRequest

NO_PROCESSORS = ProcessorUse()


def engine_ids(request_id: str, prompt_index: int, n: int) -> list[str]:
    """The engine's ids of the `n` choices of a prompt. A single choice of a single prompt has the
    id of the request."""
    if n == 1 and prompt_index == 0:
        return [request_id]
    return [f"{request_id}/{prompt_index}/{index}" for index in range(n)]


def describe_arrival(checked: CheckedRequest) -> Arrival:
    """The request as plugins see it before `admit`."""
    return Arrival(
        prompt_token_ids=checked.prompt_token_ids,
        max_tokens=checked.max_tokens,
        n=checked.params.n,
        options=checked.options,
    )


def make_requests(
    checked: CheckedRequest,
    *,
    request_id: str,
    seed: int,
    arrival_time: float,
    info: ModelInfo,
    config: EngineConfig,
    processors: ProcessorUse = NO_PROCESSORS,
    grammar_seconds: float = 0.0,
) -> list[Request]:
    """Make the engine's requests for one prompt: `n` choices that share the prompt's blocks.

    `request_id` is the id in the answer; the one in the options may have been in use.
    """
    params, options = checked.params, checked.options
    group = PromptGroup() if params.n > 1 else None
    # Without prefix caching the choices of a prompt still share its blocks, but only they do. The
    # scope must be random: a request id would not do, because a client may use its id again.
    scope = "" if config.enable_prefix_caching else uuid.uuid4().hex
    limits = [one for one in (config.request_timeout, options.request_timeout) if one is not None]
    return [
        Request(
            request_id=request_id,
            engine_id=engine_id,
            choice_index=index,
            prompt_token_ids=checked.prompt_token_ids,
            sampling_params=params,
            max_tokens=checked.max_tokens,
            arrival_time=arrival_time,
            seed=seed if index == 0 else random.Random(f"{seed}/{index}").getrandbits(63),
            eos_token_ids=info.eos_token_ids,
            bad_word_ids=checked.bad_word_ids,
            logits_processors=processors.names,
            allows_drafts=processors.allows_drafts,
            options=options,
            deadline=arrival_time + min(limits) if limits else None,
            cache_root=hash_root(info.name, options.cache_salt or "", scope),
            publishes=config.enable_prefix_caching or group is not None,
            group=group,
            scores_prompt=index == 0
            and (params.prompt_logprobs is not None or params.pooling is not None),
            grammar_seconds=grammar_seconds,
            media=checked.media,
        )
        for index, engine_id in enumerate(engine_ids(request_id, options.prompt_index, params.n))
    ]
