"""The contract of the slot `draft_length`: how many tokens to draft for each request.

The engine calls the chosen policy directly, on its own thread: `choose` once per planned step,
`observe` once per committed step, `forget` when a request ends. All three must be quick and must not
block. Nothing that a policy answers changes a token, only how fast tokens come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .policy import RequestView
from .speculation import SpeculationLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutcome:
    """What became of one request's drafts in a committed step."""

    engine_id: str
    num_draft_tokens: int
    """Draft tokens that the step verified; 0: the request had no draft in it."""
    num_accepted_tokens: int
    """The first of them that were right."""
    max_draft_tokens: int
    """Tokens that the speculator was asked for after this step; 0: it was not asked. At most what
    `choose` answered: there may have been no room for more."""
    num_proposed_tokens: int
    """Tokens that it proposed. The next step verifies them if it was planned with a length for this
    request, too; else they are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedStep:
    """A committed step, as far as draft lengths depend on it."""

    num_requests: int
    """At least 1."""
    num_tokens: int
    """Tokens that the step computed, drafts included."""
    is_decode: bool
    """Whether each request of the step had one known token, and drafts at most: no prompts."""
    seconds: float
    """From the end of the step before it to its own end, proposing included. Zero or negative if
    the clock was set back."""
    proposal_seconds: float
    """Part of `seconds` in which drafts were proposed after this step."""
    was_held_back: bool
    """Whether the step could have been planned while the one before it ran, were it not for drafts.
    The time that this cost is part of `seconds`."""
    draft_token_budget: int
    """Tokens that the step had left, for a draft model to compute what it missed."""
    outcomes: Sequence[DraftOutcome]
    """Of the requests that had a draft in this step or for which one was asked after it."""


class DraftLengthPolicy(Protocol):
    """How many tokens to draft for each request. Registered as a `draft_length`.

    Every engine has a policy of its own. It keeps its own records of requests, by `engine_id`.
    """

    def choose(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        """The most tokens to propose for each of these requests.

        - When: once per step, while it is planned; steps without a sampling request included.
        - Given: the requests that sample in this step, and the limits, which never change.
        - May answer: one int per request, in their order, from 0 to
          `limits.num_speculative_tokens`.
        - On error, or for another answer: nothing is proposed after this step. After three errors
          in a row nothing is proposed any more.
        - Cost: per step.
        """
        ...

    def observe(self, step: DraftedStep) -> None:
        """Learn from a committed step.

        - When: once per step, in the order of the steps. With --async-scheduling the next step is
          planned before this one is observed, unless drafts keep it from that.
        - On error: counted; after three in a row nothing is proposed any more.
        - Cost: per step.
        """
        ...

    def forget(self, engine_id: str) -> None:
        """Drop what is known of a request: it has ended, and its id may come again.

        - When: after the last outcome of the request was observed; also for requests for which
          nothing was ever chosen.
        - On error: counted; after three in a row nothing is proposed any more.
        - Cost: per request.
        """
        ...
