"""BlockList: order, removal anywhere, exact undo."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.core.engine.blocks.block_list import BlockList


def filled(n: int) -> BlockList:
    blocks = BlockList(n)
    for block in range(n):
        blocks.append(block)
    return blocks


def test_blocks_come_out_in_the_order_in_which_they_went_in() -> None:
    assert list(filled(4)) == [0, 1, 2, 3]


def test_a_block_can_be_removed_from_the_middle_and_appended_again() -> None:
    blocks = filled(4)
    blocks.remove(1)
    blocks.append(1)
    assert (list(blocks), len(blocks), blocks.first) == ([0, 2, 3, 1], 4, 0)


@given(st.data(), st.integers(1, 8), st.integers(0, 30))
def test_undoing_any_changes_in_reverse_restores_the_order(
    data: st.DataObject, size: int, num_changes: int
) -> None:
    blocks = filled(size)
    before = list(blocks)
    undo: list[tuple[int, int | None]] = []
    for _ in range(num_changes):
        block = data.draw(st.integers(0, size - 1))
        if block in list(blocks):
            undo.append((block, blocks.remove(block)))
        else:
            blocks.append(block)
            undo.append((block, None))
    for block, predecessor in reversed(undo):
        if predecessor is None:
            blocks.remove(block)
        else:
            blocks.restore(block, predecessor)
    assert list(blocks) == before
