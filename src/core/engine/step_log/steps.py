"""The last steps and the last requests that ended, as plain data in a bounded amount of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...contract.activity import StepActivity
from ...contract.trace import TracedStep
from ...regions import Regions
from .ledger import HookTimes, Ledger

STEP_BYTES = 500
"""Size of a LoggedStep with empty tuples."""
PAIR_BYTES, ITEM_BYTES = 100, 8
"""Size of a pair in a tuple, and of another item."""
HOOK_BYTES = 16
"""Size of the seconds of a hook. A hook that did not run shares the object of the step before."""
REGIONS_BYTES = 800
"""Size of the names of a rank's regions, and of the objects around them."""
LEDGER_BYTES = 2600
"""Size of a ledger with its dictionaries and ids."""


@dataclass(slots=True, eq=False, kw_only=True)
class LoggedStep:
    """The record of one step. Steps of the same requests share the tuple of their ids."""

    step_id: int
    planned_at: float
    committed_at: float = 0.0
    plan_seconds: float = 0.0
    device_from: float = 0.0
    """When the device began to compute it; 0 if nobody measured."""
    device_to: float = 0.0
    commit_seconds: float = 0.0
    raised: bool = False
    engine_ids: tuple[str, ...]
    """The requests that it computed."""
    num_tokens: int
    prompts: tuple[tuple[str, int], ...] = ()
    """The requests of which it computed more than one known token, and how many."""
    num_cached: tuple[tuple[str, int], ...] = ()
    """The requests that started, and the number of their tokens found in the prefix cache."""
    num_drafts: tuple[int, ...] = ()
    """Per request, the draft tokens that were verified; empty: none."""
    num_accepted: tuple[int, ...] = ()
    """Per request, the draft tokens that were accepted; empty: none."""
    preempted: tuple[str, ...] = ()
    """Requests that lost their blocks, to make room in this step."""
    num_blocks_taken: int = 0
    num_blocks_freed: int = 0
    """Since the commit before this one."""
    num_running: int = 0
    num_waiting: int = 0
    ranks: tuple[tuple[float, float], ...] = ()
    """When each worker began and ended its part; empty without workers."""
    regions: tuple[Regions, ...] = ()
    """The regions of each rank; empty if nobody measured."""
    by_hook: tuple[float, ...] = ()
    """Seconds of each hook of HookTimes since the start; empty until it is committed."""
    num_encoded_tokens: int = 0
    """Tokens that the encoder makes of images."""
    encoder_seconds: float = 0.0
    has_own_ids: bool = True
    """Whether the step before it has another tuple of ids."""

    def describe(self) -> StepActivity:
        """The step for people who watch the engine."""
        num_prompt, num_drafts = sum(count for _, count in self.prompts), sum(self.num_drafts)
        return StepActivity(
            step_id=self.step_id,
            plan_seconds=self.plan_seconds,
            device_seconds=self.device_to - self.device_from,
            commit_seconds=self.commit_seconds,
            num_prompt_tokens=num_prompt,
            num_decode_tokens=self.num_tokens - num_prompt - num_drafts,
            num_draft_tokens=num_drafts,
            num_accepted_tokens=sum(self.num_accepted),
            num_requests=len(self.engine_ids),
            num_cached_tokens=sum(count for _, count in self.num_cached),
            preempted=self.preempted,
        )

    def trace(self, before: LoggedStep | None, times: HookTimes) -> TracedStep:
        """The step with its times. `before`: the step before it, if that is traced, too."""
        shares_ids = before is not None and before.engine_ids is self.engine_ids
        return TracedStep(
            step_id=self.step_id,
            planned_at=self.planned_at,
            plan_seconds=self.plan_seconds,
            device_from=self.device_from,
            device_to=self.device_to,
            committed_at=self.committed_at,
            commit_seconds=self.commit_seconds,
            raised=self.raised,
            engine_ids=None if shares_ids else self.engine_ids,
            num_tokens=self.num_tokens,
            prompts=self.prompts,
            num_cached=self.num_cached,
            num_draft_tokens=sum(self.num_drafts),
            num_accepted_tokens=sum(self.num_accepted),
            preempted=self.preempted,
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            ranks=self.ranks,
            regions=self.regions,
            num_encoded_tokens=self.num_encoded_tokens,
            encoder_seconds=self.encoder_seconds,
            hooks=() if before is None else times.gained(before.by_hook, self.by_hook),
        )

    @property
    def num_bytes(self) -> int:
        """An estimate of the memory that the step needs in the log."""
        num_pairs = len(self.prompts) + len(self.num_cached) + len(self.ranks)
        num_items = len(self.num_drafts) + len(self.num_accepted) + len(self.preempted)
        num_ids = len(self.engine_ids) if self.has_own_ids else 0
        sizes = PAIR_BYTES * num_pairs + ITEM_BYTES * (num_items + num_ids)
        sizes += sum([REGIONS_BYTES + len(one.packed) for one in self.regions])
        return STEP_BYTES + sizes + HOOK_BYTES * len(self.by_hook)


class Ring:
    """Steps and ended requests, the oldest first. The oldest are dropped if there is no room."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: deque[tuple[LoggedStep | Ledger, int]] = deque()
        self._ended: dict[str, list[Ledger]] = {}
        """Ended requests by their id in the answer."""

    @property
    def steps(self) -> Iterator[LoggedStep]:
        """The steps, the newest first."""
        return (entry for entry, _ in reversed(self._entries) if isinstance(entry, LoggedStep))

    @property
    def ended(self) -> Iterable[Ledger]:
        """The requests that have ended, the oldest first."""
        return (ledger for found in self._ended.values() for ledger in found)

    def find(self, request_id: str) -> list[Ledger]:
        """The ended requests with this id."""
        return self._ended.get(request_id, [])

    def add_step(self, step: LoggedStep) -> None:
        """Add a step."""
        self._add(step, step.num_bytes)

    def add_ended(self, ledger: Ledger) -> None:
        """Add a request that has ended."""
        self._ended.setdefault(ledger.request_id, []).append(ledger)
        self._add(ledger, LEDGER_BYTES)

    def _add(self, entry: LoggedStep | Ledger, num_bytes: int) -> None:
        self._entries.append((entry, num_bytes))
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes and len(self._entries) > 1:
            oldest, num_bytes = self._entries.popleft()
            self._num_bytes -= num_bytes
            if isinstance(oldest, Ledger):
                self._forget(oldest)

    def _forget(self, ledger: Ledger) -> None:
        known = self._ended[ledger.request_id]
        known.remove(ledger)
        if not known:
            del self._ended[ledger.request_id]
