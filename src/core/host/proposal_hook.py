"""The hook `propose`: called on the device thread, checked, and reported from the engine's thread.

Observers and logs belong to the engine's thread. What goes wrong on the device thread is therefore
noted there and told at the next `flush`, which the engine calls in each commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pluggy

from ..contract.plugin_info import HookStats, Source
from ..contract.speculation import (
    Draft,
    DraftModel,
    ProposalBatch,
    ProposalRequest,
    SpeculationLimits,
    SpeculationSupport,
    Speculator,
)
from ..errors import ConfigError, PluginError
from ..speculation_settings import SpeculationSettings
from .decision_hook import FAILED, DecisionHook
from .failure_log import FailureLog
from .hook_timing import warn_slow

NAME = "propose"


class ProposalHook:
    """The chosen speculator behind its hook: a Speculator that never raises while it proposes."""

    def __init__(
        self,
        provider: Speculator,
        source: Source,
        settings: SpeculationSettings,
        manager: pluggy.PluginManager,
        sources: Mapping[str, Source],
        failures: FailureLog,
    ) -> None:
        self.provider = provider
        self._source = source
        self._settings = settings
        self._reports = DeferredReports(failures)
        self.hook = DecisionHook(
            NAME, source, manager, sources, self._reports, instead="nothing is guessed any more"
        )
        self._needs_lookahead = False
        self._needs_hidden_states = False
        self._vocab_size: int | None = None

    @property
    def limits(self) -> SpeculationLimits:
        """How the engine is to speculate; final once `prepare` was called."""
        return SpeculationLimits(
            num_speculative_tokens=self._settings.num_speculative_tokens,
            needs_lookahead=self._needs_lookahead,
        )

    @property
    def needs_hidden_states(self) -> bool:
        """Whether requests must come with them; final once `prepare` was called."""
        return self._needs_hidden_states

    def prepare(self, support: SpeculationSupport) -> None:
        """Let the speculator take what it needs of the executor. Once, while the model is loaded.

        Raises ConfigError when that cannot work, PluginError when the plugin is broken.
        """
        self._vocab_size = support.vocab_size
        noted = _NotedSupport(support)
        try:
            prepare = getattr(self.provider, "prepare", None)
            if prepare is not None:
                prepare(noted)
            needs_hidden_states = bool(getattr(self.provider, "needs_hidden_states", False))
        except (ConfigError, PluginError):
            raise
        except Exception as error:
            raise PluginError(
                f"{self._source} failed in 'prepare': {type(error).__name__}: {error}"
            ) from error
        self._needs_hidden_states = needs_hidden_states
        if noted.model is not None:
            self._needs_lookahead = noted.model.has_kv_cache
            self._needs_hidden_states |= noted.model.needs_hidden_states
            self._reports.warns_slow = False

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """One draft per request, within its bounds; empty ones if the speculator failed."""
        try:
            answer = self.hook.ask(batch=batch)
        except SystemExit as error:  # through the device thread it would end the whole program
            self.hook.reject(f"raised {error!r}")
            answer = FAILED
        if answer is not FAILED:
            complaint = self._complaint(answer, batch.requests)
            if complaint is None:
                drafts: Sequence[Draft] = answer
                return drafts
            self.hook.reject(complaint)
        return [Draft()] * len(batch.requests)

    def flush(self) -> None:
        """Tell logs and observers what happened on the device thread."""
        self._reports.flush()

    def _complaint(self, answer: object, requests: Sequence[ProposalRequest]) -> str | None:
        if not isinstance(answer, Sequence) or len(answer) != len(requests):
            return f"answers one Draft per request, {len(requests)} here, got {_short(answer)}"
        for draft, request in zip(answer, requests, strict=True):
            complaint = self._complaint_about(draft, request)
            if complaint is not None:
                return complaint
        return None

    def _complaint_about(self, draft: object, request: ProposalRequest) -> str | None:
        if not isinstance(draft, Draft):
            return f"answers one Draft per request, got {_short(draft)}"
        if not isinstance(draft.token_ids, Sequence):
            return f"token_ids of a Draft is a list or tuple, got {_short(draft.token_ids)}"
        if len(draft.token_ids) > request.max_draft_tokens:
            return (
                f"guessed {len(draft.token_ids)} tokens for {request.request_id!r}, at most "
                f"{request.max_draft_tokens} were asked for"
            )
        end = self._vocab_size
        for token_id in draft.token_ids:
            if type(token_id) is not int or token_id < 0 or (end is not None and token_id >= end):
                return f"guessed {token_id!r}, which is no token id of the model"
        return None


class DeferredReports:
    """Stands in for the FailureLog on another thread: notes what to tell it, in order."""

    def __init__(self, failures: FailureLog) -> None:
        self._failures = failures
        self._notes: deque[Callable[[], None]] = deque()  # a few per step; each commit empties it
        self.warns_slow = True
        """False for a draft model, which computes here: its time is accounted for elsewhere."""

    def record(self, source: Source, hook: str, error: BaseException | str, action: str) -> None:
        self._notes.append(partial(self._failures.record, source, hook, error, action))

    def take_out(self, source: Source, hook: str, instead: str) -> None:
        self._notes.append(partial(self._failures.take_out, source, hook, instead))

    def warn_slow(self, stats: HookStats, hook: str, source: Source, seconds: float) -> None:
        if self.warns_slow:
            self._notes.append(partial(warn_slow, stats, hook, source, seconds))

    def flush(self) -> None:
        """Tell everything. On the thread of the FailureLog."""
        while self._notes:
            self._notes.popleft()()


class _NotedSupport:
    """The executor's support, and the draft model that was asked of it."""

    def __init__(self, support: SpeculationSupport) -> None:
        self._support = support
        self.model: DraftModel | None = None

    @property
    def vocab_size(self) -> int:
        return self._support.vocab_size

    @property
    def hidden_size(self) -> int:
        return self._support.hidden_size

    @property
    def num_speculative_tokens(self) -> int:
        return self._support.num_speculative_tokens

    def load_draft_model(self, path: Path) -> DraftModel:
        self.model = self._support.load_draft_model(path)
        return self.model


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
