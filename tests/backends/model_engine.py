"""The shipped engine on a small model, driven step by step in this thread."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.grammar.grammars import Grammars
from tokenmill.backends.models.base import ModelImpl
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.engine.request import Request
from tokenmill.core.host.calling.proposal_hook import ProposalHook
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import ModelInfo, no_progress
from tokenmill.core.request_options import RequestOptions
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.core.shell.admission import make_requests
from tokenmill.core.shell.engine_shell import fit_max_model_len, make_core
from tokenmill.testing.engine_driver import EngineDriver

from .chosen import backends_of


def make_driver(
    checkpoint: Checkpoint,
    config: EngineConfig,
    plugins: PluginHost,
    speculation: ProposalHook | None,
    impl: ModelImpl | None = None,
    grammars: Grammars | None = None,
) -> EngineDriver:
    """An engine with these plugins; its executor computes the checkpoint by `impl`, or natively."""
    executor = ModelExecutor.from_checkpoint(
        checkpoint,
        config,
        backends_of(plugins),
        no_progress,
        swaps=plugins.uses_swap,
        speculation=speculation,
        impl=impl,
        grammars=grammars,
        processors=plugins.logits_processors,
    )
    max_model_len = fit_max_model_len(config, executor.info)
    return EngineDriver(make_core(config, executor.info, plugins, max_model_len), executor)


def make_request(
    request_id: str,
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int,
    *,
    info: ModelInfo,
    config: EngineConfig,
) -> Request:
    """A request as admission makes it."""
    (request,) = make_requests(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        params=params,
        seed=seed,
        options=RequestOptions(),
        arrival_time=0.0,
        max_model_len=info.max_model_len,
        info=info,
        config=config,
    )
    return request
