"""The contract of logits processors, as far as it needs no tensors.

LogitsProcessor in backends/sampling/processing/base.py adds the part that computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

THINKING_BUDGET = "thinking_budget"
"""The argument by which the API limits a reasoning: an object with `max_tokens`, the token ids
`start` and `end` of the marks around the reasoning, and `is_open`: the prompt ends with `start`."""


class ProcessorClass(Protocol):
    """A class of logits processors. The engine uses the class, a worker makes an instance."""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the `extra_args` that it reads. A request with any of them uses the processor.
        Two processors must not have the same name."""
        ...

    @property
    def example(self) -> Mapping[str, Any]:
        """Valid arguments, as an example in error messages and for the conformance suite."""
        ...

    @property
    def allows_drafts(self) -> bool:
        """False: requests that use it get no draft tokens, so that each call of `apply` sees one
        more token of the request than the call before."""
        ...

    @property
    def always(self) -> bool:
        """True: all requests use it, even without any of its arguments. Then `check` and
        `begin` get an empty mapping."""
        ...

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check a request's arguments: those in `arguments` that the request gives, as plain JSON.

        When: at admission, in the engine's process, on the engine thread. Lists are tuples. On
        error: raise ValueError, whose text the client gets with status 400; any other exception
        counts as a failure of the plugin, and the request fails. Cost: once per request that uses
        it.
        """
        ...
