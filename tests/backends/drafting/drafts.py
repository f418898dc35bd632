"""An engine with a draft model, driven step by step in this thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.providers.speculation import (
    Draft,
    ProposalBatch,
    SpeculationLimits,
    SpeculationSupport,
)
from tokenmill.core.host.calling.proposal_hook import ProposalHook
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.plan import CopyDirection, StepPlan, StepResult
from tokenmill.core.requests.sampling_params import SamplingParams

from ..model_engine import make_driver, make_request


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

    With a draft model three tokens are drafted each time, unless `options` say otherwise.
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
    driver = make_driver(open_checkpoint(model), config, plugins, overheard)
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    info = driver.executor.info
    requests = [
        make_request(f"request {number}", prompt, own, number, info=info, config=config)
        for number, (prompt, own) in enumerate(zip(prompts, each, strict=True))
    ]
    driver.run(requests, per_step=arrivals_per_step)
    driver.executor.close()
    return Serving(
        [tuple(r.token_ids[r.num_prompt_tokens :]) for r in requests],
        driver.plans,
        driver.results,
        sum(r.num_preemptions for r in requests),
        [] if overheard is None else overheard.proposals,
    )
