"""Drives a real engine on the simulated executor turn by turn, and records what it does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ....core.contract.providers.speculation import SpeculationLimits
from ....core.engine.blocks.pool import hash_root
from ....core.engine.engine_core import EngineCore
from ....core.engine.request import Request
from ....core.engine.step import StepLimits
from ....core.host.calling.proposal_hook import ProposalHook
from ....core.host.plugin_host import PluginHost
from ....core.outputs import FinishReason
from ....core.plan import StepPlan
from ....core.requests.request_options import RequestOptions
from ....core.requests.sampling_params import SamplingParams
from ...engine_driver import EngineDriver
from ...simulated.executor import SimulatedExecutor, expected_tokens
from ..hosting import FailureWatch, fresh, load_host
from .simulated_hidden import hidden_states_given
from .simulated_support import SimulatedSupport
from .workload import EngineShape, Job

_SPECULATING = ("speculative_method", "draft_length")
"""Kinds whose providers are checked in an engine that drafts tokens."""
TURN_SECONDS = 0.05
"""Time on the engine's clock between two turns."""


class EngineBench:
    """An engine with the provider under test. A turn plans all steps it can and commits one."""

    def __init__(self, kind: str, given: object, shape: EngineShape, *watchers: object) -> None:
        self.failures = FailureWatch()
        self.provider = fresh(given)
        plugins = load_host(kind, self.provider, self.failures, *watchers)
        speculator = plugins.speculator if kind in _SPECULATING else None
        if speculator is not None:
            speculator.prepare(SimulatedSupport(shape.vocab_size, shape.num_speculative_tokens))
        self.core = _make_core(shape, plugins, speculator)
        self._vocab_size = shape.vocab_size
        self.jobs: dict[str, Job] = {}
        """The submitted requests, in copies that the plugin cannot reach."""
        self.most_running = 0
        """Maximum number of requests that ran at the same time."""
        executor = SimulatedExecutor(
            num_blocks=shape.num_blocks,
            block_size=shape.block_size,
            num_host_blocks=shape.num_host_blocks,
            vocab_size=shape.vocab_size,
            propose=None if speculator is None else hidden_states_given(speculator),
        )
        self._driver = EngineDriver(self.core, executor, checks=False)
        self.tokens = self._driver.tokens
        self.reasons = self._driver.reasons
        self.plans = self._driver.plans

    @property
    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._driver.now

    @property
    def num_held_blocks(self) -> tuple[int, int]:
        """Blocks in use, on the device and in host memory."""
        return self.core.pool.num_held, self.core.host_pool.num_held

    def add(self, job: Job, *, priority: int = 0) -> Request:
        engine_id = f"request-{len(self.jobs)}"
        request = Request(
            request_id=engine_id,
            prompt_token_ids=job.prompt,
            sampling_params=SamplingParams(),
            max_tokens=job.max_tokens,
            arrival_time=self.now,
            seed=_seed(engine_id),
            options=RequestOptions(
                priority=priority, api_key_id=job.api_key_id, metadata=job.metadata
            ),
            cache_root=hash_root("conformance"),
        )
        self._driver.queue([request])
        self.jobs[engine_id] = job
        return request

    def plan(self) -> list[StepPlan]:
        """Advance the clock and plan steps until no more may be open; returns the new plans."""
        self._driver.now += TURN_SECONDS
        planned = []
        while (plan := self._driver.plan()) is not None:
            planned.append(plan)
            self.most_running = max(self.most_running, self.core.num_running)
        return planned

    def turn(self) -> list[StepPlan]:
        """Plan, then run and commit the oldest plan; returns the new plans."""
        planned = self.plan()
        if self._driver.open:
            self._driver.commit()
        return planned

    def run(self, jobs: Sequence[Job], *, turns: int) -> None:
        """Serve these requests as they arrive, until all have ended or for `turns` turns."""
        coming = deque(jobs)
        for turn in range(turns):
            while coming and coming[0].at <= turn:
                self.add(coming.popleft())
            if not coming and not self.core.has_work:
                return
            self.turn()

    def abort(self, engine_ids: Iterable[str]) -> None:
        """Abort requests. Requests that have already ended are ignored."""
        for engine_id in engine_ids:
            self.core.abort(engine_id, self.now)
        self._driver.check()

    def settle(self) -> None:
        """Commit the open plans without planning new ones."""
        while self._driver.open:
            self._driver.commit()

    def expected(self, engine_id: str) -> list[int]:
        """The tokens that a request must have so far."""
        job = self.jobs[engine_id]
        is_whole = self.reasons.get(engine_id) is FinishReason.LENGTH
        length = job.max_tokens if is_whole else len(self.tokens[engine_id])
        return expected_tokens(job.prompt, length, _seed(engine_id), self._vocab_size)


def _make_core(
    shape: EngineShape, plugins: PluginHost, speculator: ProposalHook | None
) -> EngineCore:
    return EngineCore(
        num_blocks=shape.num_blocks,
        block_size=shape.block_size,
        num_host_blocks=shape.num_host_blocks,
        max_model_len=2**20,
        limits=StepLimits(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            long_prefill_token_threshold=0,
            watermark_blocks=0,
            enable_prefix_caching=True,
        ),
        plugins=plugins,
        max_num_queued_reqs=2**20,
        max_inflight=shape.max_inflight,
        speculation=None if speculator is None else _limits(speculator, shape),
    )


def _limits(speculator: ProposalHook, shape: EngineShape) -> SpeculationLimits:
    return replace(speculator.limits, num_speculative_tokens=shape.num_speculative_tokens)


def _seed(engine_id: str) -> int:
    return int(engine_id.rpartition("-")[2])
