"""Wrong draft lengths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tokenmill.testing.conformance.policies import draft_length as suite

from . import fails

engine_numbers = itertools.count()
"""Makes a policy differ from one engine to the next."""


class Longest:
    """Right: as many tokens as allowed."""

    def choose(self, requests: Sequence[Any], limits: Any) -> list[Any]:
        return [limits.num_speculative_tokens] * len(requests)

    def observe(self, step: Any) -> None:
        pass

    def forget(self, engine_id: str) -> None:
        pass


@fails(suite.check_an_engine_takes_its_answers)
class TooLongForAnEngine(Longest):
    """Exceeds the limit for requests that generate for long."""

    def choose(self, requests: Sequence[Any], limits: Any) -> list[Any]:
        longest = limits.num_speculative_tokens
        return [longest + (r.num_tokens > r.num_prompt_tokens + 2) for r in requests]


@fails(suite.check_odd_steps_do_no_harm, raises=KeyError)
class KnowsItsRequests(Longest):
    """Takes every outcome for one of a request that it chose for."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def choose(self, requests: Sequence[Any], limits: Any) -> list[Any]:
        for request in requests:
            self.known.setdefault(request.engine_id, 0)
        return super().choose(requests, limits)

    def observe(self, step: Any) -> None:
        for outcome in step.outcomes:
            self.known[outcome.engine_id] += outcome.num_accepted_tokens

    def forget(self, engine_id: str) -> None:
        self.known.pop(engine_id, None)


@fails(suite.check_nothing_is_kept_of_ended_requests)
class NeverForgets(Longest):
    def __init__(self) -> None:
        self.accepted: dict[str, int] = {}

    def observe(self, step: Any) -> None:
        for outcome in step.outcomes:
            self.accepted[outcome.engine_id] = outcome.num_accepted_tokens


@fails(suite.check_it_is_deterministic)
class DiffersFromEngineToEngine(Longest):
    def __init__(self) -> None:
        self.number = next(engine_numbers)

    def choose(self, requests: Sequence[Any], limits: Any) -> list[Any]:
        return [(self.number + i) % 2 for i in range(len(requests))]
