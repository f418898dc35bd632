"""The hook `propose`: calls it on the device thread, and checks its answers.

Observers run on the engine thread. So reports of failures wait for the next `flush`, which the
engine calls in each commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pluggy

from ...contract.plugin_info import Source
from ...contract.providers.speculation import (
    Draft,
    DraftModel,
    ProposalBatch,
    ProposalRequest,
    SpeculationLimits,
    SpeculationSupport,
    Speculator,
)
from ...errors import CONTAINED, ConfigError, PluginError, describe
from ...members import NEEDS_HIDDEN_STATES, PREPARE
from ...settings.speculation import SpeculationSettings
from .failure_log import FailureLog
from .guard import DECIDES, FAILED
from .hook_callers import Decision


class ProposalHook:
    """The chosen speculator behind its hook. Its `propose` never raises."""

    def __init__(
        self,
        provider: Speculator,
        source: Source,
        settings: SpeculationSettings,
        manager: pluggy.PluginManager,
        sources: Mapping[str, Source],
        log: FailureLog,
    ) -> None:
        self.provider = provider
        self._source = source
        self._settings = settings
        self._reports: deque[Callable[[], None]] = deque()  # short: each commit empties it
        self._decision = Decision(
            manager.hook.propose,
            replace(DECIDES, instead="no drafts are proposed any more"),
            sources,
            log,
            check=self._complaint,
            later=self._reports.append,
        )
        self.guards = self._decision.guards
        self._needs_lookahead = False
        self.needs_hidden_states = False
        """Whether requests must come with hidden states, final once `prepare` was called."""
        self._vocab_size: int | None = None

    @property
    def limits(self) -> SpeculationLimits:
        """The limits on drafts, final once `prepare` was called."""
        return SpeculationLimits(
            num_speculative_tokens=self._settings.num_speculative_tokens,
            needs_lookahead=self._needs_lookahead,
        )

    def prepare(self, support: SpeculationSupport) -> None:
        """Let the speculator set up what needs the executor. Call it once, while the model loads.

        Raises ConfigError for settings that cannot work, PluginError if the plugin fails.
        """
        self._vocab_size = support.vocab_size
        noted = _NotedSupport(support)
        try:
            PREPARE.of(self.provider)(noted)
            needs_hidden_states = bool(NEEDS_HIDDEN_STATES.of(self.provider))
        except (ConfigError, PluginError):
            raise
        except CONTAINED as error:
            raise PluginError(f"{self._source} failed in 'prepare': {describe(error)}") from error
        self.needs_hidden_states = needs_hidden_states
        if noted.model is not None:
            self._needs_lookahead = noted.model.has_kv_cache
            self.needs_hidden_states |= noted.model.needs_hidden_states
            for guard in self.guards:
                guard.warns_slow = False  # a model computes in it, so slow calls are expected

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """One valid draft per request. All are empty if the speculator failed."""
        answer = self._decision.ask(batch)
        drafts: Sequence[Draft] = [Draft()] * len(batch.requests) if answer is FAILED else answer
        return drafts

    def flush(self) -> None:
        """Send reports of the device thread to logs and observers. Call it on the engine thread."""
        while self._reports:
            self._reports.popleft()()

    def _complaint(self, answer: object, batch: ProposalBatch) -> str | None:
        requests = batch.requests
        if not isinstance(answer, Sequence) or len(answer) != len(requests):
            return f"'propose' must return {len(requests)} drafts, got {_short(answer)}"
        for draft, request in zip(answer, requests, strict=True):
            complaint = self._complaint_about(draft, request)
            if complaint is not None:
                return complaint
        return None

    def _complaint_about(self, draft: object, request: ProposalRequest) -> str | None:
        if not isinstance(draft, Draft):
            return f"'propose' must return a Draft per request, got {_short(draft)}"
        if not isinstance(draft.token_ids, Sequence):
            return f"token_ids of a Draft must be a list or tuple, got {_short(draft.token_ids)}"
        if len(draft.token_ids) > request.max_draft_tokens:
            return (
                f"drafted {len(draft.token_ids)} tokens for {request.engine_id!r}, the maximum is "
                f"{request.max_draft_tokens}"
            )
        end = self._vocab_size
        for token_id in draft.token_ids:
            if type(token_id) is not int or token_id < 0 or (end is not None and token_id >= end):
                return f"drafted {token_id!r}, which is not a token id of the model"
        return None


class _NotedSupport:
    """The executor's support; it keeps the draft model that was loaded."""

    def __init__(self, support: SpeculationSupport) -> None:
        self._support = support
        self.model: DraftModel | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._support, name)

    def load_draft_model(self, path: Path) -> DraftModel:
        self.model = self._support.load_draft_model(path)
        return self.model


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
