"""BlockPool against a plain model of lists and dicts, and its rollback."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tokenmill.core.contract.activity import BlockState
from tokenmill.core.contract.events import RemovedBlock
from tokenmill.core.engine.blocks.pool import BlockPool, hash_block, hash_chain, hash_root


def test_a_hash_depends_on_the_parent_the_tokens_and_the_root() -> None:
    root = hash_root("model", "salt")
    first = hash_block(root, [1, 2])
    assert first == hash_block(root, (1, 2))
    assert first != hash_block(hash_root("model", "other"), [1, 2])
    assert first != hash_block(hash_block(root, [0, 0]), [1, 2])
    assert first != hash_block(root, [2, 1])
    assert hash_chain(root, [1, 2, 3, 4, 5], 2) == [first, hash_block(first, [3, 4])]


def test_roots_do_not_confuse_where_one_part_ends() -> None:
    assert hash_root("ab", "c") != hash_root("a", "bc")
    assert hash_root("a\0b", "c") != hash_root("a", "b\0c")


def test_a_root_can_be_made_of_any_text() -> None:
    assert hash_root("\ud800") != hash_root("\udfff")


def test_a_block_with_the_same_hash_but_other_tokens_is_not_found() -> None:
    pool = BlockPool(2, 2)
    block = pool.take()
    pool.publish(block, b"collision", (1, 2))
    assert pool.find(b"collision", (1, 2)) == block
    assert pool.find(b"collision", (1, 3)) is None


def test_free_blocks_are_taken_before_cached_ones_and_the_oldest_cached_one_goes_first() -> None:
    pool = BlockPool(3, 2)
    first, second = pool.take(), pool.take()
    pool.publish(first, b"first", (1, 1))
    pool.publish(second, b"second", (2, 2))
    pool.drop([first])
    pool.drop([second])
    third = pool.take()
    assert third not in (first, second)
    assert pool.take() == first
    assert pool.find(b"first", (1, 1)) is None
    assert pool.find(b"second", (2, 2)) == second


def test_only_blocks_that_nobody_holds_are_forgotten() -> None:
    pool = BlockPool(3, 2)
    pool.changes = []
    held, cached = pool.take(), pool.take()
    pool.publish(held, b"h" * 32, (1, 1))
    pool.publish(cached, b"c" * 32, (2, 2), 1)
    pool.drop([cached])
    assert not pool.forget()
    assert pool.find(b"h" * 32, (1, 1)) == held
    assert pool.find(b"c" * 32, (2, 2), 1) is None
    assert pool.take_changes()[2:] == (RemovedBlock(block_hash=b"c" * 32, group=1),)
    pool.check([held == block for block in range(3)])
    pool.drop([held])
    assert pool.forget()
    assert pool.describe() == "3" + BlockState.FREE


def test_dropping_a_block_that_nobody_holds_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="block 0 is not held"):
        BlockPool(1, 1).drop([0])


def test_check_finds_a_wrong_reference_count() -> None:
    pool = BlockPool(2, 1)
    pool.take()
    pool.check([1, 0])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check([2, 0])


class PoolMachine(RuleBasedStateMachine):
    """The pool does what the model does: a dict of holders, and two lists in order of age."""

    @initialize(num_blocks=st.integers(1, 6))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 2)
        self.held: dict[int, int] = {}
        self.free = list(range(num_blocks))
        self.cached: list[int] = []
        self.hashes: dict[int, bytes] = {}
        self.saved: tuple[object, ...] | None = None
        self.counter = 0

    def save(self) -> tuple[dict[int, int], list[int], list[int], dict[int, bytes]]:
        return dict(self.held), list(self.free), list(self.cached), dict(self.hashes)

    @precondition(lambda self: self.free or self.cached)
    @rule()
    def take(self) -> None:
        block = self.pool.take()
        if self.free:
            assert block == self.free.pop(0)
        else:
            assert block == self.cached.pop(0)
            del self.hashes[block]
        self.held[block] = 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.drop([block])
        self.held[block] -= 1
        if not self.held[block]:
            del self.held[block]
            (self.cached if block in self.hashes else self.free).append(block)

    @precondition(lambda self: self.held or self.cached)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted([*self.held, *self.cached])))
        self.pool.share(block)
        if block in self.cached:
            self.cached.remove(block)
        self.held[block] = self.held.get(block, 0) + 1

    @precondition(lambda self: self.saved is None and set(self.held) - set(self.hashes))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(set(self.held) - set(self.hashes))))
        self.counter += 1
        block_hash = str(self.counter).encode()
        self.pool.publish(block, block_hash, (self.counter, 0))
        self.hashes[block] = block_hash

    @precondition(lambda self: self.saved is None)
    @rule()
    def begin(self) -> None:
        self.saved = (self.save(), self.pool.digest())
        self.pool.begin()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def confirm(self) -> None:
        self.pool.confirm()
        self.saved = None

    @precondition(lambda self: self.saved is not None)
    @rule()
    def rollback(self) -> None:
        assert self.saved is not None
        (self.held, self.free, self.cached, self.hashes), digest = self.saved  # type: ignore[misc]
        self.pool.rollback()
        assert self.pool.digest() == digest
        self.saved = None

    @invariant()
    def same_as_model(self) -> None:
        self.pool.check([self.held.get(b, 0) for b in range(self.pool.num_blocks)])
        _, free, cached, hashes = self.pool.digest()
        assert (list(free), list(cached)) == (self.free, self.cached)  # type: ignore[call-overload]
        assert {b: h for b, h in enumerate(hashes) if h} == self.hashes  # type: ignore[arg-type, var-annotated]
        assert self.pool.num_available + self.pool.num_held == self.pool.num_blocks


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
