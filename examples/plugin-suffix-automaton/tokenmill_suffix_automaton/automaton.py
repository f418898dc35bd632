"""The suffix automaton of a growing text (Blumer et al. 1985), with the latest positions."""

from collections.abc import Sequence


class SuffixAutomaton:
    """Finds the longest ending of the text that occurred before, in constant time per token.

    A state stands for all pieces of the text that end at the same set of positions. Its link leads
    to the state of the longest ending of these pieces that also ends at other positions. For the
    newest state, this is the longest ending that occurred before.
    """

    def __init__(self) -> None:
        self.match = 0
        """Length of the longest ending that occurred before."""
        self.place = 0
        """Position at which that earlier occurrence ended, as a number of tokens."""
        self.num_tokens = 0
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._place = [0]
        """For each state, the last recorded position at which its pieces ended."""
        self._newest = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in token_ids:
            self._append(token)
            seen = self._link[self._newest]
            self.match, self.place = self._length[seen], self._place[seen]
            self._place[seen] = self.num_tokens

    def _append(self, token: int) -> None:
        self.num_tokens += 1
        state, new = self._newest, self._add({}, self.num_tokens, self.num_tokens)
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        self._link[new] = 0 if state < 0 else self._target(state, token)
        self._newest = new

    def _target(self, state: int, token: int) -> int:
        """The state of exactly the pieces of `state` with this token, split off where needed."""
        found = self._next[state][token]
        if self._length[found] == self._length[state] + 1:
            return found
        split = self._add(dict(self._next[found]), self._length[state] + 1, self._place[found])
        self._link[split], self._link[found] = self._link[found], split
        while state >= 0 and self._next[state].get(token) == found:
            self._next[state][token] = split
            state = self._link[state]
        return split

    def _add(self, following: dict[int, int], length: int, place: int) -> int:
        self._next.append(following)
        self._link.append(0)
        self._length.append(length)
        self._place.append(place)
        return len(self._next) - 1
