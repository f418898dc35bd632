"""The state machine under any order of calls, with policies good and wild: never a wrong token,
never a lost block."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tokenmill.core.contract.providers.speculation import SpeculationLimits
from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.outputs import FinishReason
from tokenmill.testing.simulated.drafting import DraftingSettings

from ..engines import Bench, wild

WINDOWS = [(None,), (None,), (1,), (2,), (5,), (11,), (None, 5), (2, 11, 2)]


class EngineMachine(RuleBasedStateMachine):
    """Adds, plans, commits, failures and aborts in any order."""

    @initialize(
        num_blocks=st.integers(3, 24),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(2, 24),
        caching=st.booleans(),
        max_inflight=st.integers(1, 2),
        scheduler=st.sampled_from(["chunked", "prefill-first", "wild"]),
        num_speculative_tokens=st.integers(0, 8),
        draft_length=st.sampled_from(["adaptive", "fixed"]),
        needs_lookahead=st.booleans(),
        kv_windows=st.sampled_from(WINDOWS),
        seed=st.integers(0, 1000),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        caching: bool,
        max_inflight: int,
        scheduler: str,
        num_speculative_tokens: int,
        draft_length: str,
        needs_lookahead: bool,
        kv_windows: tuple[int | None, ...],
        seed: int,
    ) -> None:
        policy = (
            {"schedule": wild(random.Random(seed))}
            if scheduler == "wild"
            else {"scheduler": scheduler}
        )
        drafting = DraftingSettings(
            limits=SpeculationLimits(
                num_speculative_tokens=num_speculative_tokens, needs_lookahead=needs_lookahead
            ),
            draft_length=draft_length,
            seed=seed,
        )
        self.bench = Bench(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(budget, max_num_seqs),
            enable_prefix_caching=caching,
            max_inflight=max_inflight,
            scheduling_policy="priority",
            kv_windows=kv_windows,
            drafting=drafting if num_speculative_tokens else None,
            **policy,  # type: ignore[arg-type]
        )

    @rule(
        stem=st.sampled_from([(), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8, 9)]),
        tail=st.lists(st.integers(0, 9), min_size=1, max_size=6),
        max_tokens=st.integers(1, 12),
        n=st.sampled_from([1, 1, 1, 3]),
        priority=st.sampled_from([0, 0, 1]),
    )
    def add(
        self, stem: tuple[int, ...], tail: list[int], max_tokens: int, n: int, priority: int
    ) -> None:
        try:
            self.bench.add([*stem, *tail], max_tokens, n=n, priority=priority)
        except InvalidRequestError:
            return  # never fits

    @rule()
    def plan(self) -> None:
        self.bench.now += 0.01
        self.bench.plan()

    @precondition(lambda self: self.bench.open)
    @rule()
    def commit(self) -> None:
        self.bench.commit()

    @precondition(lambda self: self.bench.open)
    @rule()
    def fail(self) -> None:
        self.bench.fail()

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.core.abort(
            data.draw(st.sampled_from(sorted(self.bench.requests))), self.bench.now
        )
        self.bench.check()

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data())
    def stop_string(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.bench.requests)))
        if self.bench.tokens[name]:
            num_tokens = data.draw(st.integers(1, len(self.bench.tokens[name])))
            self.bench.core.finish(name, FinishReason.STOP, self.bench.now, num_tokens=num_tokens)
            self.bench.check()

    @rule()
    def reset_prefix_cache(self) -> None:
        self.bench.core.reset_prefix_cache()
        self.bench.check()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        while self.bench.open:
            self.bench.commit()
        self.bench.run()
        self.bench.check_tokens()
        assert self.bench.reasons.keys() == self.bench.requests.keys()
        assert self.bench.core.pool.num_held == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestEngineMachine(EngineMachine.TestCase):  # type: ignore[misc, valid-type]
    """Run by hypothesis."""

    settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
