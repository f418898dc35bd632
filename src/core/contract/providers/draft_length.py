"""The contract of the slot `draft_length`: how many tokens to draft for each request.

The engine calls the chosen policy directly, on the engine thread: `choose` once per planned step,
`observe` once per committed step, `forget` when a request ends. All three must be quick and must
not block. A policy changes how fast tokens are generated, never which tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..policy import RequestView
from .speculation import SpeculationLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutcome:
    """The results of one request's drafts in a committed step."""

    engine_id: str
    num_draft_tokens: int
    """Draft tokens that the step verified; 0 if the request had no draft in this step."""
    num_accepted_tokens: int
    """Draft tokens that were accepted: all tokens before the first wrong one."""
    max_draft_tokens: int
    """Maximum number of tokens that the speculator could propose after this step; 0 if it was not
    asked. It is at most what `choose` answered, and less if there was no room."""
    num_proposed_tokens: int
    """Tokens that the speculator proposed. The next step verifies them if it was planned with a
    length for this request, too; otherwise they are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedStep:
    """The measurements of a committed step that matter for draft lengths."""

    num_requests: int
    """At least 1."""
    num_tokens: int
    """Tokens that the step computed, drafts included."""
    is_decode: bool
    """True if the step computed one known token per request, plus drafts, and no prompts."""
    seconds: float
    """Time from the end of the previous step to the end of this one, including the proposal of
    drafts. Zero or negative if the clock was set back."""
    proposal_seconds: float
    """The part of `seconds` in which drafts were proposed after this step."""
    was_held_back: bool
    """True if, without drafts, the step could have been planned while the previous step ran. The
    time that this cost is part of `seconds`."""
    draft_token_budget: int
    """Tokens that the step had left, with which a draft model may compute tokens that it missed."""
    outcomes: Sequence[DraftOutcome]
    """One per request that had a draft in this step, or was asked for a draft after it."""


class DraftLengthPolicy(Protocol):
    """Decides how many tokens to draft for each request. Register it as a `draft_length`.

    Every engine has a policy object of its own, which keeps its records of requests by `engine_id`.
    """

    def choose(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        """The maximum number of tokens to propose for each of these requests.

        - When: once per step, while it is planned, even if no request samples in it.
        - Given: the requests that sample in this step, and the limits, which never change.
        - May answer: one int per request, in order, from 0 to `limits.num_speculative_tokens`.
        - On error, or for an invalid answer: no drafts are proposed after this step. After three
          errors in ten calls no drafts are proposed any more.
        - Cost: per step.
        """
        ...

    def observe(self, step: DraftedStep) -> None:
        """Learn from a committed step.

        - When: once per step, in the order of the steps. With --async-scheduling the next step is
          planned before this one is observed, except when drafts prevent that.
        - On error: counted; after three in ten calls no drafts are proposed any more.
        - Cost: per step.
        """
        ...

    def forget(self, engine_id: str) -> None:
        """Drop the records of a request that has ended. Its id may be used again.

        - When: after the last outcome of the request was observed. Also called for requests that
          `choose` never saw.
        - On error: counted; after three in ten calls no drafts are proposed any more.
        - Cost: per request.
        """
        ...
