"""The parts of one request's time while it is live. Every moment belongs to exactly one part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from ...contract.explanation import Limit, Preemption
from ...contract.trace import TracedRequest
from ..request import Request

MAX_HOLDERS = 4
"""Maximum number of requests that an explanation names as holders of blocks."""
NOTHING: Mapping[Limit, float] = {}
MAX_PREEMPTIONS = 16
"""Maximum number of preemptions of one request that are kept, the last ones."""


@dataclass(frozen=True, slots=True)
class HookTimes:
    """The times of the plugins' hooks that delay steps."""

    names: tuple[str, ...]
    """The names of the hooks in an explanation."""
    read: Callable[[], tuple[float, ...]]
    """Seconds of each hook since the start."""

    def gained(
        self, before: tuple[float, ...], after: tuple[float, ...]
    ) -> tuple[tuple[str, float], ...]:
        """The hooks that ran between two readings, with the seconds. Nothing without a reading."""
        totals = zip(self.names, before, after, strict=False)
        return tuple([(name, new - old) for name, old, new in totals if new != old])


NO_HOOKS = HookTimes((), tuple)
"""The times of an engine whose hooks are not timed, such as a simulated one."""


@dataclass(slots=True, eq=False)
class Meters:
    """Seconds of the whole engine since its start, of which each request reads differences."""

    times: HookTimes
    by_hook: tuple[float, ...]
    """The seconds of `times` at `_read_at`."""
    prompts: float = 0.0
    """The time of steps, in proportion to their prompt tokens."""
    device: float = 0.0
    """In which the device computed."""
    hooks: float = 0.0
    """The sum of `by_hook`."""
    _read_at: float = -1.0

    def read(self, now: float) -> None:
        """Bring `by_hook` up to date. Many requests may ask at the same time."""
        if now != self._read_at:
            self._read_at = now
            self.by_hook = self.times.read()
            self.hooks = sum(self.by_hook)


class QueueMeter:
    """Seconds for which the waiting requests that were not refused themselves had to wait, by the
    limit that stopped the first one that was refused."""

    def __init__(self) -> None:
        self.limit = Limit.OPEN_STEP
        self.head: str | None = None
        """The request that was refused first."""
        self.holders: tuple[str, ...] = ()
        """The requests that held the most blocks when it found none."""
        self._totals: dict[Limit, float] = {}
        self._since = 0.0

    def set(self, limit: Limit, head: str | None, now: float) -> None:
        """Note the limit of the step that was decided at `now`."""
        if limit is not self.limit:
            self._advance(now)
            self.limit = limit
        self.head = head

    def read(self, now: float) -> dict[Limit, float]:
        """The totals up to `now`."""
        self._advance(now)
        return self._totals.copy()

    def _advance(self, now: float) -> None:
        if now > self._since:
            seconds = now - self._since
            self._totals[self.limit] = self._totals.get(self.limit, 0.0) + seconds
        self._since = now


@dataclass(slots=True, eq=False)
class Ledger:
    """The time of one request, by what was done or not done in it."""

    request: Request | None
    """None once it has ended."""
    request_id: str
    engine_id: str
    prompt_index: int
    choice_index: int
    api_key_id: str | None
    num_prompt_tokens: int
    arrival: float
    """A time of the clock, before its grammar was compiled."""
    since: float
    """Up to which time the parts are filled."""
    meters: Meters
    limit: Limit | None = Limit.OPEN_STEP
    """The reason why it waits; None while it is computed, or `queue` is set."""
    queue: QueueMeter | None = None
    """Set while it waits behind a request that was refused."""
    redo_until: int = 0
    """Computed tokens with which it has recovered from a preemption; 0: it has."""
    has_token: bool = False
    waiting: dict[Limit, float] = field(default_factory=dict)
    prompt: float = 0.0
    prompt_steps: float = 0.0
    """Seconds of the steps that computed its prompt."""
    prompt_alone: float = 0.0
    """Its own share of them, by number of tokens."""
    prompt_images: float = 0.0
    """The part of them in which its images were encoded."""
    num_prompt_steps: int = 0
    num_other_tokens: int = 0
    preempted: float = 0.0
    preemptions: tuple[Preemption, ...] = ()
    decode_alone: float = 0.0
    decode_others: float = 0.0
    plugins: float = 0.0
    held_by: tuple[str, ...] = ()
    behind: str | None = None
    first_token_at: float | None = None
    ended_at: float | None = None
    finish_reason: str | None = None
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    slowest_plugin: str = ""
    _queue_before: Mapping[Limit, float] = field(default_factory=lambda: NOTHING)
    _prompts_before: float = 0.0
    _device_before: float = 0.0
    _hooks_before: float = 0.0
    _by_hook_before: tuple[float, ...] = ()

    def settle(self, now: float) -> None:
        """Fill the parts up to `now`."""
        seconds, self.since = max(0.0, now - self.since), now
        prompts, hooks = self._read_meters(seconds, now)
        if self.redo_until:
            self.preempted += seconds
        elif self.queue is not None:
            self._settle_queue(seconds, now)
        else:
            self.plugins += hooks
            seconds -= hooks
            if self.limit is not None:
                self._add_wait(self.limit, seconds)
            elif not self.has_token:
                self.prompt += seconds
            else:
                others = min(prompts, seconds)
                self.decode_others += others
                self.decode_alone += seconds - others

    def _read_meters(self, seconds: float, now: float) -> tuple[float, float]:
        """Seconds of prompts, and of plugins while the device idled, within the last `seconds`."""
        meters = self.meters
        prompts, self._prompts_before = meters.prompts - self._prompts_before, meters.prompts
        device, self._device_before = meters.device - self._device_before, meters.device
        meters.read(now)
        hooks, self._hooks_before = meters.hooks - self._hooks_before, meters.hooks
        return prompts, max(0.0, min(hooks, seconds - device))

    def _settle_queue(self, seconds: float, now: float) -> None:
        assert self.queue is not None
        before, after = self._queue_before, self.queue.read(now)
        for limit, total in after.items():
            if gained := min(total - before.get(limit, 0.0), seconds):
                seconds -= gained
                self._add_wait(limit, gained)
                if limit in (Limit.BLOCKS, Limit.WATERMARK):
                    self.hold(self.queue.holders)
        self._queue_before = after
        self.behind = self.queue.head or self.behind

    def _add_wait(self, limit: Limit, seconds: float) -> None:
        if seconds:
            self.waiting[limit] = self.waiting.get(limit, 0.0) + seconds

    def begin(self) -> None:
        """Start to read the meters. The hooks of its admission count for it, because they ran after
        the meters were read for the last time."""
        meters = self.meters
        self._prompts_before, self._device_before = meters.prompts, meters.device
        self._hooks_before, self._by_hook_before = meters.hooks, meters.by_hook

    def compute(self, now: float) -> None:
        """A step computes it from `now` on."""
        self.settle(now)
        self.limit = self.queue = None

    def wait(self, limit: Limit, now: float) -> None:
        """The step that was decided at `now` does not compute it, because of `limit`."""
        if limit is not self.limit:
            self.settle(now)
            self.limit, self.queue = limit, None

    def wait_behind(self, queue: QueueMeter, now: float) -> None:
        """It waits for the same reason as the first waiting request that was refused."""
        if self.queue is None:
            self.settle(now)
            self.limit, self.queue = None, queue
            self._queue_before = queue.read(now)

    def hold(self, holders: Iterable[str]) -> None:
        """Note the requests that held the most blocks when it found none."""
        for name in holders:
            known = name == self.request_id or name in self.held_by
            if not known and len(self.held_by) < MAX_HOLDERS:
                self.held_by = (*self.held_by, name)

    def count_prompt(
        self, num_own: int, num_others: int, seconds: float, own_images: float, images: float
    ) -> None:
        """Note a step of its prompt, with the tokens of others in it: `seconds` for tokens, and
        `images` for the encoder, of which `own_images` for its own."""
        self.prompt_steps += seconds + images
        self.prompt_images += own_images
        self.prompt_alone += seconds * num_own / (num_own + num_others)
        self.num_prompt_steps += 1
        self.num_other_tokens += num_others

    def lose(self, preemption: Preemption, now: float) -> None:
        """It lost its blocks."""
        self.settle(now)
        self.redo_until = max(self.redo_until, preemption.num_tokens, 1)
        self.preemptions = (*self.preemptions, preemption)[-MAX_PREEMPTIONS:]

    def recover(self, now: float) -> None:
        """The tokens from before its preemption have been computed again."""
        self.settle(now)
        self.redo_until = 0

    def begin_decode(self, now: float) -> None:
        """It has its first token."""
        self.settle(now)
        self.has_token, self.first_token_at = True, now

    def update(self, now: float) -> None:
        """Bring it up to date, unless the request has ended."""
        if (request := self.request) is None:
            return
        self.settle(now)
        gained = self.meters.times.gained(self._by_hook_before, self.meters.by_hook)
        self.slowest_plugin = max(gained, key=itemgetter(1), default=("", 0.0))[0]
        self.num_cached_tokens = request.num_cached_tokens
        self.num_generated_tokens = request.num_generated_tokens
        self.num_draft_tokens = request.num_draft_tokens
        self.num_accepted_tokens = request.num_accepted_tokens

    def trace(self, now: float) -> TracedRequest:
        """The request up to its end, or up to `now`."""
        self.update(now)
        return TracedRequest(
            engine_id=self.engine_id,
            api_key_id=self.api_key_id,
            arrival=self.arrival,
            first_token_at=self.first_token_at,
            ended_at=self.ended_at,
            finish_reason=self.finish_reason,
            num_prompt_tokens=self.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_generated_tokens=self.num_generated_tokens,
            waiting=dict(self.waiting),
            preemptions=self.preemptions,
        )

    def end(self, now: float) -> None:
        """Fill the parts for the last time, and let go of the request."""
        self.update(now)
        assert self.request is not None and self.request.finish_reason is not None
        self.finish_reason = self.request.finish_reason.value
        self.ended_at, self.request, self.queue = now, None, None
        self._by_hook_before, self._queue_before = (), NOTHING
