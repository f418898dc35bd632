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
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.checking import check_ids
from tokenmill.core.shell.new_core import fit_max_model_len, make_core
from tokenmill.core.shell.new_requests import make_requests
from tokenmill.testing.engine_driver import EngineDriver
from tokenmill.testing.toy_tokenizer import ToyTokenizer

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
        tokenizer=ToyTokenizer(checkpoint.config.vocab_size),
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
    """A request as the engine makes it."""
    checked = check_ids(
        prompt, params, vocab_size=info.vocab_size, max_model_len=info.max_model_len
    )
    (request,) = make_requests(
        checked, request_id=request_id, seed=seed, arrival_time=0.0, info=info, config=config
    )
    return request
