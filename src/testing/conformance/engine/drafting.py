"""Calls `propose` of a speculator in a real plugin host, and records its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ....core.contract.hookspecs import hookimpl
from ....core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from ....core.host.plugin_host import PluginHost
from ....core.requests.read_only_collections import ReadOnlyList
from ..hosting import Listening, fresh, listen, load_host
from .proposal_lives import MAX_DRAFT_TOKENS
from .simulated_hidden import hidden_states_given
from .simulated_support import SimulatedSupport
from .workload import VOCAB_SIZE

KIND = "speculative_method"


@dataclass(frozen=True, slots=True)
class ProposeCall:
    """One call of `propose`, with its answer."""

    batch: ProposalBatch
    """The batch as it was at the call."""
    answer: object
    error: Exception | None
    """The exception that the call raised, if any."""
    seconds: float

    def drafts(self) -> dict[str, tuple[int, ...]]:
        """The draft tokens by request. Parts of the answer with a wrong type are left out."""
        if not isinstance(self.answer, Sequence):
            return {}
        pairs = zip(self.batch.requests, self.answer, strict=False)
        return {r.engine_id: tuple(d.token_ids) for r, d in pairs if isinstance(d, Draft)}


class ProposeListener:
    """Records every call of `propose`, before the engine checks the answer."""

    def __init__(self) -> None:
        self.calls: list[ProposeCall] = []

    @hookimpl(wrapper=True, tryfirst=True)
    def propose(self, batch: ProposalBatch) -> Listening:
        asked = replace(batch, requests=tuple(map(_copied, batch.requests)))
        return (yield from listen(lambda v, e, s: self.calls.append(ProposeCall(asked, v, e, s))))


def ask(
    given: object, batches: Iterable[ProposalBatch], *, hidden_overwritten: bool = True
) -> list[ProposeCall]:
    """Call a fresh speculator once per batch. The host stops calling it after three failures in a
    row, so there may be fewer calls than batches.

    Each call gets its own lists of tokens and hidden states, which are emptied afterwards: a
    speculator must not keep them.
    """
    listener = ProposeListener()
    host = load_host(KIND, fresh(given), listener)
    propose = prepare(host, hidden_overwritten=hidden_overwritten)
    for batch in batches:
        lists = [ReadOnlyList(request.token_ids) for request in batch.requests]
        pairs = zip(batch.requests, lists, strict=True)
        propose(replace(batch, requests=[replace(r, token_ids=ids) for r, ids in pairs]))
        for token_ids in lists:
            list.clear(token_ids)
    return listener.calls


def needs_hidden_states(given: object) -> bool:
    """Whether a speculator asks for hidden states, after `prepare`."""
    host = load_host(KIND, fresh(given))
    prepare(host)
    return host.speculator is not None and host.speculator.needs_hidden_states


def prepare(
    host: PluginHost, *, hidden_overwritten: bool = True
) -> Callable[[ProposalBatch], Sequence[Draft]]:
    """Prepare the speculator as an executor does at load time; returns the function to call."""
    assert host.speculator is not None
    host.speculator.prepare(SimulatedSupport(VOCAB_SIZE, MAX_DRAFT_TOKENS))
    return hidden_states_given(host.speculator, overwritten=hidden_overwritten)


def _copied(request: ProposalRequest) -> ProposalRequest:
    return replace(request, token_ids=tuple(request.token_ids))
