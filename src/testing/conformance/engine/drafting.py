"""Puts calls of `propose` to a speculator in a real plugin host, and listens in on its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace

from ....core.contract.hookspecs import hookimpl
from ....core.contract.speculation import Draft, ProposalBatch, ProposalRequest
from ....core.host.plugin_host import PluginHost
from ..hosting import fresh, load_host
from .proposal_lives import MAX_DRAFT_TOKENS
from .simulated_hidden import hidden_states_given
from .simulated_support import SimulatedSupport
from .workload import VOCAB_SIZE

KIND = "speculative_method"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What came of one call."""

    batch: ProposalBatch
    """As it was asked, whatever the speculator has done to its copy."""
    answer: object
    error: Exception | None
    """What was raised instead."""
    seconds: float
    changed: tuple[str, ...]
    """Requests whose tokens were not left as they were."""

    def drafts(self) -> dict[str, tuple[int, ...]]:
        """The guessed tokens by request, as far as the answer can be read."""
        if not isinstance(self.answer, Sequence):
            return {}
        pairs = zip(self.batch.requests, self.answer, strict=False)
        return {r.engine_id: tuple(d.token_ids) for r, d in pairs if isinstance(d, Draft)}


class ProposeListener:
    """Notes every answer of `propose`, before the engine makes something of it."""

    def __init__(self) -> None:
        self.guesses: list[Guess] = []

    @hookimpl(wrapper=True, tryfirst=True)
    def propose(self, batch: ProposalBatch) -> Generator[None, object, object]:
        asked = replace(batch, requests=tuple(map(_copied, batch.requests)))
        value, caught = None, None
        started = time.perf_counter()
        try:
            value = yield
            return value
        except Exception as error:
            caught = error
            raise
        finally:
            seconds = time.perf_counter() - started
            self.guesses.append(
                Guess(
                    batch=asked,
                    answer=value,
                    error=caught,
                    seconds=seconds,
                    changed=tuple(
                        before.engine_id
                        for before, after in zip(asked.requests, batch.requests, strict=True)
                        if list(before.token_ids) != list(after.token_ids)
                    ),
                )
            )


def ask(
    given: object, calls: Iterable[ProposalBatch], *, hidden_overwritten: bool = True
) -> list[Guess]:
    """The answers of a fresh speculator, one per call: fewer if it failed three times in a row, as
    it is asked no more then.

    Each call gets lists of its own, which are emptied after it, and so are hidden states: a
    speculator must not keep them.
    """
    listener = ProposeListener()
    host = load_host(KIND, fresh(given), listener)
    propose = prepare(host, hidden_overwritten=hidden_overwritten)
    for call in calls:
        lists = [list(request.token_ids) for request in call.requests]
        pairs = zip(call.requests, lists, strict=True)
        propose(replace(call, requests=[replace(r, token_ids=ids) for r, ids in pairs]))
        for token_ids in lists:
            token_ids.clear()
    return listener.guesses


def needs_hidden_states(given: object) -> bool:
    """Whether it says so, once it is prepared."""
    host = load_host(KIND, fresh(given))
    prepare(host)
    return host.speculator is not None and host.speculator.needs_hidden_states


def prepare(
    host: PluginHost, *, hidden_overwritten: bool = True
) -> Callable[[ProposalBatch], Sequence[Draft]]:
    """What an executor does while it loads its model; answers how it asks from then on."""
    assert host.speculator is not None
    host.speculator.prepare(SimulatedSupport(VOCAB_SIZE, MAX_DRAFT_TOKENS))
    return hidden_states_given(host.speculator, overwritten=hidden_overwritten)


def _copied(request: ProposalRequest) -> ProposalRequest:
    return replace(request, token_ids=tuple(request.token_ids))
