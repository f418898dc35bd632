"""Finds requests that may crash the engine: requests that were open in several crashes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from ..errors import InvalidRequestError
from ..sampling_params import OutputKind, SamplingParams

MAX_CRASHES = 2
"""A request that was open in this many crashes is refused. One crash may be a coincidence."""
MAX_SUSPECTS = 4096
"""Maximum number of requests to remember. Requests of the oldest crashes are forgotten first."""


Asked = tuple[tuple[int, ...], SamplingParams]
"""Token ids of a prompt, and parameters."""


class CrashSuspects:
    """Counts crashes per request: per prompt and parameters, because clients send again."""

    def __init__(self) -> None:
        self._crashes: OrderedDict[bytes, int] = OrderedDict()

    def add_crash(self, present: Iterable[Asked], resent: Iterable[Asked] = ()) -> None:
        """Note a crash, in which these requests were open.

        `resent` are others, which another engine had when it crashed. If there are several, this
        crash does not count for them: the cause took the innocent ones along.
        """
        again = {_key(*request) for request in resent}
        for key in {_key(*request) for request in present} | (again if len(again) == 1 else set()):
            self._crashes[key] = self._crashes.pop(key, 0) + 1
        while len(self._crashes) > MAX_SUSPECTS:
            self._crashes.popitem(last=False)

    def check(self, prompt_token_ids: tuple[int, ...], params: SamplingParams) -> None:
        """Raise InvalidRequestError for a request that was present in MAX_CRASHES crashes."""
        if not self._crashes:
            return
        if self._crashes.get(_key(prompt_token_ids, params), 0) >= MAX_CRASHES:
            raise InvalidRequestError(
                f"this request was being answered when the engine crashed, {MAX_CRASHES} times, "
                "and is refused now; change its prompt or parameters"
            )

    def acquit(self, prompt_token_ids: tuple[int, ...], params: SamplingParams) -> None:
        """Forget a request that was answered without a crash."""
        if self._crashes:
            self._crashes.pop(_key(prompt_token_ids, params), None)


def _key(prompt_token_ids: tuple[int, ...], params: SamplingParams) -> bytes:
    content = prompt_token_ids, params.with_changes(output_kind=OutputKind.FINAL)
    return hashlib.sha256(msgspec.msgpack.encode(content)).digest()
