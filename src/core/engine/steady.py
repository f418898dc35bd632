"""Steady decoding: steps in which the same requests get one token each, and nothing else happens.

A simulation computes such steps in one jump instead of planning each of them. The result is the
same as with `plan` and `commit`: requests, blocks, step ids, and the events that observers get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.events import Planned, PrefixCacheChanged, StepDone
from ..host.plugin_host import PluginHost
from .accepting import publish
from .blocks.pool import BlockPool
from .planning import StepPlanner
from .queues import RequestQueues
from .request import Request


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SteadyDecoding:
    """Finds jumps and applies them. No plan may be open.

    For an engine without drafts, images, windows, stages and step log, whose scheduler has
    `decodes_all`.
    """

    queues: RequestQueues
    pool: BlockPool
    planner: StepPlanner
    plugins: PluginHost
    max_model_len: int

    def num_steps(self) -> int:
        """The number of steps from now on in which each running request decodes one token, while
        none starts, ends or needs a block. 0: the next step must be planned."""
        queues, planner = self.queues, self.planner
        if queues.waiting or queues.has_deadlines or planner.suspects.current():
            return 0
        if len(queues.running) > planner.limits.max_num_batched_tokens:
            return 0
        return max(0, min(map(self._num_steps, queues.running), default=0))

    @property
    def num_computed_tokens(self) -> int:
        """Tokens that the next step reads from the KV cache."""
        return sum(request.num_computed_tokens for request in self.queues.running)

    def _num_steps(self, request: Request) -> int:
        size, num_computed = self.pool.block_size, request.num_computed_tokens
        is_decoding = request.num_generated_tokens and request.num_tokens - num_computed == 1
        if not is_decoding or request.stop_token_ids or num_computed // size >= request.num_blocks:
            return 0
        return min(
            size - num_computed % size,
            request.max_tokens - request.num_generated_tokens - 1,
            self.max_model_len - request.num_tokens - 1,
        )

    def decode(self, token_id: int, begin: float, ends: Sequence[float]) -> None:
        """Compute steps, at most `num_steps()`, all of whose tokens are `token_id`.

        `begin`: the time when the first one is planned; `ends`: the time of each commit, at which
        the next step is planned.
        """
        running, planner = self.queues.running, self.planner
        planner.wake_at = planner.waiting_since = None
        gaps = []
        for request in running:
            assert request.last_token_time is not None, "it has generated a token"
            gaps.append(ends[0] - request.last_token_time)
            request.token_ids += [token_id] * len(ends)
            request.num_computed_tokens += len(ends)
            request.last_token_time = ends[-1]
            request.last_served_step = planner.step_id + len(ends)
        for number, end in enumerate(ends, 1):
            planner.step_id += 1
            if self.plugins.observes(Planned):
                self._report_plan(len(running))
            if number == len(ends):  # blocks are full after the last step, if at all
                self._publish()
            if self.plugins.observes(StepDone):
                self._report_step(end - begin, gaps)
            if number < len(ends):
                begin, gaps = end, [ends[number] - end] * len(running)

    def _publish(self) -> None:
        for request in self.queues.running:
            publish(self.pool, request)
        if changes := self.pool.take_changes():
            self.plugins.emit(PrefixCacheChanged(changes=changes))

    def _report_plan(self, num_running: int) -> None:
        self.plugins.emit(
            Planned(step_id=self.planner.step_id, num_requests=num_running, num_tokens=num_running)
        )

    def _report_step(self, seconds: float, gaps: Sequence[float]) -> None:
        self.plugins.emit(
            StepDone(
                step_id=self.planner.step_id,
                seconds=seconds,
                num_prompt_tokens=0,
                num_generation_tokens=len(gaps),
                num_running=len(gaps),
                num_waiting=0,
                kv_cache_usage=self.pool.num_held / self.pool.num_blocks,
                prefix_cache_queries=0,
                prefix_cache_hits=0,
                time_to_first_tokens=(),
                inter_token_latencies=tuple(gaps),
            )
        )
