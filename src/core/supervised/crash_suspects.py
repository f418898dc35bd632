"""Finds the requests that crash engines, without harm to others in the same steps.

The requests of the steps that an engine computed when it crashed are suspects. Each engine gets one
suspect at a time, together with requests that are none. So the next crash has one suspect, which is
convicted: it is refused for a time. A suspect that gets past the token at which the engine crashed
is cleared.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import InvalidRequestError, OverloadedError
from ..processes.watching.restarts import PERIOD

MAX_SUSPECTS = 4096
"""Maximum number of prompts to remember. The oldest ones are forgotten first."""


class SuspectWaitsError(OverloadedError):
    """Another suspect is tried first, on each engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    since: float
    """Time of the crash."""
    num_tokens: int
    """Number of its tokens that the crashed step would have computed at the latest."""
    is_convicted: bool = False


class CrashSuspects:
    """The suspects of all engines of a server, by digest of their prompts. Parameters do not count:
    they are easily changed, and a client that sends again may reach any engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: OrderedDict[bytes, _Suspect] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there are any. Otherwise no digest is needed."""
        return bool(self._found)

    def add_crash(self, present: Mapping[bytes, int]) -> bool:
        """Note a crash; returns whether it convicts a request.

        `present`: the requests of the crashed steps, each with its number of tokens, see _Suspect.
        """
        now = self._clock()
        known = [digest for digest in present if self.is_suspect(digest)]
        convicts = len(known) == 1
        # While several suspects were together, the crash says nothing new about other requests.
        for digest in known or present:
            self._found.pop(digest, None)
            self._found[digest] = _Suspect(
                since=now, num_tokens=present[digest], is_convicted=convicts
            )
        while len(self._found) > MAX_SUSPECTS:
            self._found.popitem(last=False)
        return convicts

    def is_suspect(self, digest: bytes) -> bool:
        """Whether a prompt was in a crashed step, and is neither cleared nor convicted."""
        found = self._current(digest)
        return found is not None and not found.is_convicted

    def check(self, digest: bytes) -> None:
        """Raise InvalidRequestError for a prompt that is convicted."""
        found = self._current(digest)
        if found is not None and found.is_convicted:
            raise InvalidRequestError(
                "the engine crashed twice while it computed this prompt, which is refused for "
                f"{PERIOD / 60:.0f} minutes; change the prompt",
                param="prompt",
            )

    def clear(self, digest: bytes, num_tokens: int | None = None) -> None:
        """Note that this number of the request's tokens are computed; None: it has ended."""
        found = self._current(digest)
        if found is not None and (num_tokens is None or num_tokens >= max(1, found.num_tokens)):
            del self._found[digest]

    def _current(self, digest: bytes) -> _Suspect | None:
        found = self._found.get(digest)
        if found is not None and self._clock() - found.since > PERIOD:
            del self._found[digest]
            return None
        return found
