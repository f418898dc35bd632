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
            "help": "key of the metadata that names the tenant; without it, the API key does"
        },
    )
    weights: Mapping[str, Weight] = field(
        default_factory=dict,
        metadata={"help": "share of each tenant, compared with the 1.0 of one that is not named"},
    )


class FairQueueing:
    """Self-clocked fair queueing (Golestani, 1994). Each request gets a tag at first sight: the
    time at which a slow server would have finished it that serves all tenants at once, by weight.
    Smaller tags go first. The clock of that server is the tag of the last request that finished.
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
        """Set the clock on, and forget what it has passed."""
        for request in event.requests:
            self._now = max(self._now, self._tags.pop(request.engine_id, 0.0))
            tenant = self._tenant(request)
            if self._last_tags.get(tenant, 0.0) <= self._now:
                self._last_tags.pop(tenant, None)

    def _next_tag(self, request: RequestView) -> float:
        """A tenant that was away starts from now: it does not save up its turns."""
        tenant = self._tenant(request)
        start = max(self._now, self._last_tags.get(tenant, 0.0))
        work = request.num_prompt_tokens + request.max_tokens
        tag = start + work / self._options.weights.get(tenant, 1.0)
        self._last_tags[tenant] = tag
        return tag

    def _tenant(self, request: RequestView | FinishedRequest) -> str:
        return request.metadata.get(self._options.tenant) or request.api_key_id or ""
