"""A board on which an engine's process writes what it does. Its parent reads it at any time, even
after the process has crashed or while it hangs.

The board is shared memory, so the words stay when their writer ends. Each word has one writer.
"""

from __future__ import annotations

import socket
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..channels.shared_memory import receive_bytes, share_bytes
from .last_steps import LAST_STEPS_BYTES, LastSteps

WORD = 8
NUM_WORDS = 16
BEATS, LAUNCHED, FINISHED, BUSY, ADDING, EXPECTED, EXCUSED = range(7)
"""Indexes of the words."""
TEXT_BYTES = 256
"""Room for a text: a byte of length, and text in UTF-8."""
STAGE_BYTES = 2 * TEXT_BYTES
"""Room for the stage of the start, and for the plugin whose code runs in it."""
NUM_STEPS = 8
"""Number of launched steps whose requests the board keeps. The last words of the board hold them,
each as a number of requests and then a word per request."""
TOKEN_BITS = 24
"""A request's word has its number, and in the lowest bits a number of tokens."""
MAX_TOKENS = (1 << TOKEN_BITS) - 1


MAX_CALLS = 256
"""Maximum number of named calls. Each has a byte, which is 1 while the call runs."""
CALL_BYTES = MAX_CALLS * 128
"""Room for these bytes, and for the names: a line per call in UTF-8."""


def board_bytes(max_requests: int) -> int:
    """Size of a board for steps with up to this many requests."""
    words = WORD * (NUM_WORDS + NUM_STEPS * (1 + max_requests))
    return words + STAGE_BYTES + CALL_BYTES + LAST_STEPS_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The words that change while an engine computes."""

    num_beats: int
    """Signs of life of the event loop."""
    num_finished: int
    """Finished steps."""
    is_busy: bool
    """Whether there is work, and the engine does not wait on purpose."""


class Board:
    """The words of one engine's process."""

    def __init__(self, memory: memoryview) -> None:
        """`memory`: `board_bytes` of zeros, or of the other side's board."""
        start = WORD * NUM_WORDS
        last_steps = len(memory) - LAST_STEPS_BYTES
        end = last_steps - STAGE_BYTES - CALL_BYTES
        self._words = memory[:start].cast("Q")
        self._seconds = memory[:start].cast("d")
        slots = memory[start:end].cast("Q")
        size = len(slots) // NUM_STEPS
        self._steps = [slots[i * size : (i + 1) * size] for i in range(NUM_STEPS)]
        self._stage = memory[end : end + TEXT_BYTES]
        self._plugin = memory[end + TEXT_BYTES : end + STAGE_BYTES]
        self._calls = memory[end + STAGE_BYTES : last_steps]
        self.last_steps: LastSteps | None = LastSteps(memory[last_steps:])
        """None: no other process reads the board."""

    # The engine's process writes

    def beat(self) -> None:
        """Give a sign of life of the event loop."""
        self._words[BEATS] += 1

    def show_stage(self, stage: str) -> None:
        """Note what the engine does before it is ready."""
        _write(self._stage, stage)

    def show_plugin(self, stage: str) -> None:
        """Note which plugin's code runs before the engine is ready; "": none."""
        _write(self._plugin, stage)

    def add(self, number: int) -> None:
        """Note the number of the request that is being queued; 0: none is."""
        self._words[ADDING] = number

    def work(self, is_busy: bool, expected_seconds: float = 0.0) -> None:
        """Note whether there is work, and the maximum seconds that its step is expected to take."""
        self._seconds[EXPECTED] = expected_seconds
        self._words[BUSY] = is_busy

    def launch(self, requests: Iterable[tuple[int, int]]) -> None:
        """Note that a step is launched: the number of each request, and the number of its tokens
        that are computed when the step ends. The number 0: the parent does not know the request."""
        words = array("Q", [number << TOKEN_BITS | end for number, end in requests])
        slot = self._steps[self._words[LAUNCHED] % NUM_STEPS]
        slot[1 : 1 + len(words)] = words
        slot[0] = len(words)
        self._words[LAUNCHED] += 1  # last: until then the step does not count

    def finish(self) -> None:
        """Note that the oldest launched step is finished."""
        self._words[FINISHED] += 1

    def excuse(self) -> None:
        """Note that the engine ends, and that no request is the cause."""
        self._words[EXCUSED] = True

    def name_calls(self, names: Sequence[str]) -> list[memoryview]:
        """Note the names of calls that may hang or crash. Returns a byte for each, to be set to 1
        while the call runs. Names for which there is no room get a byte that nobody reads."""
        room, lines = CALL_BYTES - MAX_CALLS, b""
        for name in names[:MAX_CALLS]:
            line = name.encode() + b"\n"
            lines += line if len(lines) + len(line) <= room else b"\n"
        self._calls[MAX_CALLS : MAX_CALLS + len(lines)] = lines[:room]
        unread = memoryview(bytearray(1))
        return [self._calls[i : i + 1] if i < MAX_CALLS else unread for i in range(len(names))]

    # Its parent reads

    @property
    def stage(self) -> str:
        """The last stage before the engine was ready, or the plugin whose code ran."""
        text = self._plugin if self._plugin[0] else self._stage
        return bytes(text[1 : 1 + text[0]]).decode(errors="replace")

    @property
    def expected_seconds(self) -> float:
        return self._seconds[EXPECTED]

    @property
    def progress(self) -> Progress:
        words = self._words
        return Progress(
            num_beats=words[BEATS], num_finished=words[FINISHED], is_busy=bool(words[BUSY])
        )

    @property
    def running_calls(self) -> tuple[str, ...]:
        """The names of the calls that run now, or did when the process ended."""
        names = bytes(self._calls[MAX_CALLS:]).decode(errors="replace").split("\n")
        running = bytes(self._calls[:MAX_CALLS])
        return tuple(name for name, runs in zip(names, running, strict=False) if runs and name)

    @property
    def is_excused(self) -> bool:
        """Whether the engine has noted that no request is the cause of its end."""
        return bool(self._words[EXCUSED])

    def in_work(self) -> Mapping[int, int]:
        """The requests of the steps that are launched and not finished, with the number of their
        tokens that these steps compute at the latest, and the request that is being queued."""
        adding = self._words[ADDING]
        steps = self._requests(self._words[FINISHED], self._words[LAUNCHED])
        return steps | {adding: 0} if adding else steps

    def computed(self) -> Mapping[int, int]:
        """The requests of the step that finished last, with the number of their computed tokens."""
        finished = self._words[FINISHED]
        return self._requests(max(0, finished - 1), finished)

    def _requests(self, first: int, end: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for step in range(max(first, end - NUM_STEPS), end):
            slot = self._steps[step % NUM_STEPS]
            for word in slot[1 : 1 + slot[0]]:
                number, num_tokens = word >> TOKEN_BITS, word & MAX_TOKENS
                found[number] = max(num_tokens, found.get(number, 0))
        found.pop(0, None)
        return found


def private_board(max_requests: int) -> Board:
    """A board that no other process reads."""
    board = Board(memoryview(bytearray(board_bytes(max_requests))))
    board.last_steps = None
    return board


def _write(memory: memoryview, text: str) -> None:
    encoded = text.encode()[: TEXT_BYTES - 1]
    memory[1 : 1 + len(encoded)] = encoded
    memory[0] = len(encoded)


def share_board(sock: socket.socket, max_requests: int) -> Board:
    """Make a board, and send it to the process at the other end of a socket."""
    return Board(share_bytes(sock, board_bytes(max_requests)))


def receive_board(sock: socket.socket) -> Board:
    """Receive the board that the parent shares. Raises EOFError if the parent is gone."""
    return Board(receive_bytes(sock))
