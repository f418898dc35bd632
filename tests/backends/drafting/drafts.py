"""An engine with a draft model, driven step by step in this thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.backends.attention.choice import choose_attention_backend
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.speculation import (
    Draft,
    ProposalBatch,
    SpeculationLimits,
    SpeculationSupport,
)
from tokenmill.core.engine.request import Request
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.host.proposal_hook import ProposalHook
from tokenmill.core.plan import CopyDirection, StepPlan, StepResult
from tokenmill.core.request_options import RequestOptions
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.core.shell.admission import make_requests
from tokenmill.core.shell.async_engine import EngineParts, fit_max_model_len, make_core
from tokenmill.testing import ToyTokenizer

from ..models.dense import ignore_progress


@dataclass(frozen=True, slots=True)
class Serving:
    """What came out, and how."""

    token_ids: list[tuple[int, ...]]
    """Generated, per prompt."""
    plans: list[StepPlan]
    results: list[StepResult]
    num_preemptions: int
    proposals: list[tuple[tuple[int, ...], tuple[int, ...]]]
    """Known tokens, and the draft that came for them."""

    @property
    def num_accepted(self) -> int:
        """Drafts that were accepted, over all steps."""
        return sum(max(len(ids) - 1, 0) for r in self.results for ids in r.token_ids)

    @property
    def num_drafts(self) -> int:
        """Drafts that were verified."""
        return sum(grant.num_draft_tokens for plan in self.plans for grant in plan.grants)

    @property
    def num_swap_ins(self) -> int:
        return sum(c.direction is CopyDirection.IN for plan in self.plans for c in plan.copies)


class Overheard:
    """A speculator, and what it said."""

    def __init__(self, speculator: ProposalHook) -> None:
        self._speculator = speculator
        self.proposals: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    @property
    def limits(self) -> SpeculationLimits:
        return self._speculator.limits

    @property
    def needs_hidden_states(self) -> bool:
        return self._speculator.needs_hidden_states

    def prepare(self, support: SpeculationSupport) -> None:
        self._speculator.prepare(support)

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        drafts = self._speculator.propose(batch)
        for request, draft in zip(batch.requests, drafts, strict=True):
            self.proposals.append((tuple(request.token_ids), tuple(draft.token_ids)))
        return drafts


def serve(
    model: Path,
    draft: Path | None,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    arrivals_per_step: int = 2,
    **options: Any,
) -> Serving:
    """Let the prompts arrive, a few with each step; the books are checked after every step.

    With a draft model three tokens are guessed each time, unless `options` say otherwise.
    """
    speculation: dict[str, Any] = {}
    if draft is not None:
        speculation = {
            "speculative_model": str(draft),
            "num_speculative_tokens": 3,
            "speculative_adaptive": False,
        }
    common = {"device": "cpu", "dtype": "float32", "watermark": 0.0, "swap_space": 2**-6}
    config = EngineConfig(model=str(model), **common | speculation | options)
    plugins = PluginHost.load(config)
    overheard = None if plugins.speculator is None else Overheard(plugins.speculator)
    executor = ModelExecutor.from_checkpoint(
        open_checkpoint(model),
        config,
        choose_attention_backend(plugins),
        ignore_progress,
        swaps=plugins.uses_swap,
        speculation=overheard,
    )
    parts = EngineParts(
        executor=executor, tokenizer=ToyTokenizer(executor.info.vocab_size), plugins=plugins
    )
    core = make_core(config, parts, fit_max_model_len(config, executor.info))
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    requests: list[Request] = []
    for number, (prompt, own) in enumerate(zip(prompts, each, strict=True)):
        requests += make_requests(
            request_id=f"request {number}",
            prompt_token_ids=tuple(prompt),
            params=own,
            seed=number,
            options=RequestOptions(),
            arrival_time=0.0,
            max_model_len=executor.info.max_model_len,
            info=executor.info,
            config=config,
        )
    plans, results = [], []
    arriving = list(reversed(requests))
    while arriving or core.has_work:
        now = len(plans) / 100
        for _ in range(min(arrivals_per_step, len(arriving))):
            core.add([arriving.pop()], now)
        plan = core.plan(now)
        assert plan is not None, "there is work and nothing is planned"
        plans.append(plan)
        results.append(executor.run(plan))
        core.commit(plan, results[-1], now)
        core.check()
    executor.close()
    return Serving(
        [tuple(r.token_ids[r.num_prompt_tokens :]) for r in requests],
        plans,
        results,
        sum(r.num_preemptions for r in requests),
        [] if overheard is None else overheard.proposals,
    )
