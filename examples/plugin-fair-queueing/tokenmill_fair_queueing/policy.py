"""The policy and its options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from tokenmill.plugin import Finished, FinishedRequest, RequestView, hookimpl

Weight = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FairQueueingOptions:
    """Options of the table [scheduling_policy]."""

    tenant: str = field(
        default="x-tenant",
        metadata={
            "help": "key of the request's metadata that names the tenant; without it, the API key "
            "names it"
        },
    )
    weights: Mapping[str, Weight] = field(
        default_factory=dict,
        metadata={"help": "weight of each tenant; a tenant that is not named has 1.0"},
    )


class FairQueueing:
    """Self-clocked fair queueing (Golestani, 1994).

    Imagine a server that serves all tenants at the same time, by weight. When a request is seen
    first, it gets a tag: the time at which that server would finish it. Requests with smaller tags
    go first. The clock of that server shows the largest tag of the requests that have finished.
    """

    uses_priority = False

    def __init__(self, options: FairQueueingOptions) -> None:
        self._options = options
        self._now = 0.0
        self._tags: dict[str, float] = {}
        self._last_tags: dict[str, float] = {}  # by tenant

    def key(self, request: RequestView, now: float) -> tuple[float, ...]:
        tag = self._tags.get(request.engine_id)
        if tag is None:
            tag = self._tags[request.engine_id] = self._next_tag(request)
        return (tag,)

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        """Advance the clock, and drop the tags that it has passed."""
        for request in event.requests:
            self._now = max(self._now, self._tags.pop(request.engine_id, 0.0))
            tenant = self._tenant(request)
            if self._last_tags.get(tenant, 0.0) <= self._now:
                self._last_tags.pop(tenant, None)

    def _next_tag(self, request: RequestView) -> float:
        """The tag of a new request. A tenant that was idle starts from now: it saves no turns."""
        tenant = self._tenant(request)
        start = max(self._now, self._last_tags.get(tenant, 0.0))
        work = request.num_prompt_tokens + request.max_tokens
        tag = start + work / self._options.weights.get(tenant, 1.0)
        self._last_tags[tenant] = tag
        return tag

    def _tenant(self, request: RequestView | FinishedRequest) -> str:
        sender = request.options
        return sender.metadata.get(self._options.tenant) or sender.api_key_id or ""
