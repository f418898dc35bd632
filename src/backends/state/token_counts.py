"""The tokens that one request has seen, for penalties. Updated with each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """Distinct token ids of prompt and output, and how often each one was generated."""

    __slots__ = ("_counts", "_places", "_token_ids")

    def __init__(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> None:
        distinct = list(dict.fromkeys(prompt_token_ids))
        self._places = {token_id: place for place, token_id in enumerate(distinct)}
        self._token_ids = np.array([*distinct, *[0] * 64], dtype=np.int64)
        self._counts = np.zeros(len(self._token_ids), dtype=np.float32)
        for token_id in output_token_ids:
            self.add(token_id)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """int64 [u], each id once."""
        return self._token_ids[: len(self._places)]

    @property
    def output_counts(self) -> npt.NDArray[np.float32]:
        """float32 [u]: 0 for a token that occurs only in the prompt."""
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._token_ids):
            self._token_ids = np.concatenate((self._token_ids, np.zeros_like(self._token_ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._token_ids[place] = token_id
        self._counts[place] += 1

    def after(self, token_ids: Sequence[int]) -> TokenCounts:
        """A copy to which these generated tokens are added; self if there are none."""
        if not token_ids:
            return self
        counts = TokenCounts((), ())
        counts._places = self._places.copy()
        counts._token_ids = self._token_ids.copy()
        counts._counts = self._counts.copy()
        for token_id in token_ids:
            counts.add(token_id)
        return counts
