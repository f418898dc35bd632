"""The last steps of an engine's process, in memory that its parent shares. The parent reads them
after the process has crashed, or while it hangs."""

from __future__ import annotations

import struct

import msgspec

MAX_STEPS = 128
MAX_NAMED = 8
"""Maximum number of requests that a step names."""
SLOT_BYTES = 1024
LAST_STEPS_BYTES = MAX_STEPS * SLOT_BYTES
_FACTS = struct.Struct("<Qd6IH")
"""The numbers of a PlannedStep, and the length of its names. 0: it does not count."""
_LENGTH = struct.Struct("<H")
_TIMES = struct.Struct("<Q5d?")
_ROOM = SLOT_BYTES - _FACTS.size - _TIMES.size


class PlannedStep(msgspec.Struct, frozen=True):
    """The facts about a step that are known when it is launched."""

    step_id: int
    planned_at: float
    """A time of the monotonic clock."""
    num_requests: int
    num_tokens: int
    num_prompt_tokens: int
    num_draft_tokens: int
    num_running: int
    num_waiting: int
    requests: tuple[str, ...]
    """The first MAX_NAMED requests that it computes; none if their names need too much room."""
    preempted: tuple[str, ...]
    """The same of the requests that lost their blocks, to make room in it."""


class FinishedStep(msgspec.Struct, frozen=True):
    """The facts about a step that are known when it is finished. Times as in PlannedStep."""

    plan_seconds: float
    device_from: float
    """0 if it raised, as `device_to`."""
    device_to: float
    committed_at: float
    commit_seconds: float
    raised: bool


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[tuple[str, ...], tuple[str, ...]]).decode


class LastSteps:
    """A slot of the memory for each of the last steps: its numbers, its names as msgpack, and its
    times. Writing takes a few microseconds in every step, so no objects are made for it."""

    def __init__(self, memory: memoryview) -> None:
        """`memory`: LAST_STEPS_BYTES of zeros, or the memory of an existing object."""
        starts = range(0, LAST_STEPS_BYTES, SLOT_BYTES)
        self._slots = [memory[start : start + SLOT_BYTES] for start in starts]
        self._requests: tuple[str, ...] = ()
        self._preempted: tuple[str, ...] = ()
        self._names = _encode(((), ()))
        """The encoded names of these two. Most steps compute the requests of the step before."""

    # The engine's process writes

    def launch(
        self,
        requests: tuple[str, ...],
        preempted: tuple[str, ...],
        step_id: int,
        *numbers: float,
    ) -> None:
        """Note that a step is launched. `numbers`: the other fields of PlannedStep, in order."""
        if requests is not self._requests or preempted is not self._preempted:
            self._name(requests, preempted)
        slot, names = self._slots[step_id % MAX_STEPS], self._names
        # Until it is whole, it does not count: the length is written last.
        _LENGTH.pack_into(slot, _FACTS.size - _LENGTH.size, 0)
        slot[_FACTS.size : _FACTS.size + len(names)] = names
        _FACTS.pack_into(slot, 0, step_id, *numbers, len(names))

    def _name(self, requests: tuple[str, ...], preempted: tuple[str, ...]) -> None:
        self._requests, self._preempted = requests, preempted
        names = _encode((requests[:MAX_NAMED], preempted[:MAX_NAMED]))
        # Clients choose ids of any length.
        self._names = names if len(names) <= _ROOM else _encode(((), ()))

    def finish(self, step_id: int, *times: float) -> None:
        """Note that a step is finished. `times`: the fields of FinishedStep, in their order."""
        slot = self._slots[step_id % MAX_STEPS]
        _TIMES.pack_into(slot, SLOT_BYTES - _TIMES.size, step_id, *times)

    # Its parent reads

    def read(self) -> list[tuple[PlannedStep, FinishedStep | None]]:
        """The steps, the oldest first. A step that was not finished has no times.

        A step that was being written when the process ended, or that a crash has damaged, is left
        out.
        """
        found = []
        for slot in self._slots:
            *numbers, length = _FACTS.unpack_from(slot)
            if not 0 < length <= _ROOM:
                continue
            try:
                names = _decode(slot[_FACTS.size : _FACTS.size + length])
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            facts = [*numbers, *names]
            step = PlannedStep(*facts)
            step_id, *times = _TIMES.unpack_from(slot, SLOT_BYTES - _TIMES.size)
            found.append((step, FinishedStep(*times) if step_id == step.step_id else None))
        return sorted(found, key=lambda one: one[0].step_id)
