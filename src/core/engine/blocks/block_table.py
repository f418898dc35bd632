"""A request's block table in one group of layers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class BlockTable:
    """Blocks in the order of their tokens. The first ones may be behind the group's window."""

    block_ids: list[int] = field(default_factory=list)
    """The blocks that the request holds: those that the window has not passed."""
    num_passed: int = 0
    """Number of blocks at the beginning that the window has passed."""

    def __len__(self) -> int:
        """Length of the table, including the blocks that the window has passed."""
        return self.num_passed + len(self.block_ids)
