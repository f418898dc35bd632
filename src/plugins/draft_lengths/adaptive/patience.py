"""Whether to go on asking a speculator that has found nothing for long."""

from __future__ import annotations

PATIENT_CALLS = 32
"""So many calls in a row may find nothing before they are counted."""
VAIN_SHARE = 0.02
"""What calls in vain may cost from then on, as a part of what steps cost."""


class Patience:
    """Its unit is the caller's: seconds, or steps where the call itself is not what costs."""

    def __init__(self) -> None:
        self._num_vain = 0
        self._debt = 0.0

    @property
    def is_left(self) -> bool:
        """Whether it may be asked now."""
        return self._num_vain < PATIENT_CALLS or self._debt <= 0

    def add_step(self, cost: float) -> None:
        """A step was made."""
        self._debt = max(0.0, self._debt - VAIN_SHARE * max(0.0, cost))

    def add_call(self, cost: float, *, found: bool) -> None:
        """It was asked, and found something for somebody or for nobody."""
        if found:
            self._num_vain, self._debt = 0, 0.0
            return
        self._num_vain += 1
        if self._num_vain >= PATIENT_CALLS:
            self._debt += cost
