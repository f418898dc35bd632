"""Hidden states without a model, for speculators that need them: they depend on the tokens only.

Shape suffixes: n rows, e hidden size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from ....core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from ....core.host.calling.proposal_hook import ProposalHook

if TYPE_CHECKING:
    import torch

HIDDEN_SIZE = 16
_MOST_ROWS = 3
_NUM_SEEN = 4
"""Number of tokens that determine a row."""


def hidden_states_given(
    hook: ProposalHook, *, overwritten: bool = True
) -> Callable[[ProposalBatch], Sequence[Draft]]:
    """`hook.propose` on a device thread, as an engine calls it. If the speculator needs hidden
    states, it gets them, and they are overwritten after each call, as an executor does."""
    device = ThreadPoolExecutor(1, thread_name_prefix="tokenmill-device")
    if not hook.needs_hidden_states:
        return lambda batch: device.submit(hook.propose, batch).result()

    num_known: dict[str, int] = {}

    def propose(batch: ProposalBatch) -> Sequence[Draft]:
        for engine_id in (*batch.ended, *batch.started):
            num_known.pop(engine_id, None)
        hidden = []
        for request in batch.requests:
            known = len(request.token_ids)
            before = num_known.get(request.engine_id, known - 1)
            hidden.append(simulated_hidden_states(request.token_ids, known - before))
            num_known[request.engine_id] = known
        pairs = zip(batch.requests, hidden, strict=True)
        asked = replace(batch, requests=[_with(r, h_ne) for r, h_ne in pairs])
        drafts = device.submit(hook.propose, asked).result()
        for hidden_ne in hidden if overwritten else ():
            hidden_ne.fill_(float("nan"))
        return drafts

    return propose


def simulated_hidden_states(token_ids: Sequence[int], num_new: int) -> torch.Tensor:
    """float32 [n, e]: the states before the last n tokens. n is at most `num_new`, and may be less,
    because several steps may have generated the new tokens."""
    import torch

    end = len(token_ids)
    num_rows = max(1, min(num_new, 1 + end % _MOST_ROWS))
    rows = []
    for place in range(end - num_rows, end):
        seen = repr(token_ids[max(0, place - _NUM_SEEN) : place])
        noise = torch.Generator().manual_seed(zlib.crc32(seen.encode()))
        rows.append(torch.randn(HIDDEN_SIZE, generator=noise))
    return torch.stack(rows)


def _with(request: ProposalRequest, hidden_ne: torch.Tensor) -> ProposalRequest:
    return replace(request, hidden_states=hidden_ne)
