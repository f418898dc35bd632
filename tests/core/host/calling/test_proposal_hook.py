"""`propose` through the host: checked on the device thread, reported on the engine's."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import PluginFailed
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch
from tokenmill.core.errors import ConfigError, PluginError
from tokenmill.core.host.calling import guard
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.testing.conformance.engine.simulated_support import (
    SimulatedDraftModel,
    SimulatedSupport,
)

from ...drafting_plugins import Drafting, Method, batch, propose
from ...hook_stats import stats_of

pytestmark = pytest.mark.usefixtures("own_folder")

SUPPORT = SimulatedSupport(vocab_size=100, num_speculative_tokens=4)
NONE = [Draft()]


class Watch:
    """Notes failures, and on which thread it heard of them."""

    def __init__(self) -> None:
        self.failures: list[PluginFailed] = []
        self.threads: set[int] = set()

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self.failures.append(event)
        self.threads.add(threading.get_ident())


def load(plugin: object, *others: object, prepare: bool = True) -> PluginHost:
    config = EngineConfig(speculative_method="drafting")
    host = PluginHost.load(config, extra=[plugin, *others])
    if prepare:
        assert host.speculator is not None
        host.speculator.prepare(SUPPORT)
    return host


def broken(asked: ProposalBatch) -> Any:
    raise ValueError("no idea")


def test_the_chosen_method_is_asked_and_its_drafts_are_returned() -> None:
    host = load(Drafting(lambda b: [Draft(token_ids=r.token_ids[:2]) for r in b.requests]))
    drafts = propose(host, batch([7, 8, 9], [1]))
    assert [draft.token_ids for draft in drafts] == [[7, 8], [1]]
    assert stats_of(host, "propose").calls == 1


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, "must return 1 drafts, got None"),
        ([], "must return 1 drafts, got []"),
        ([Draft(), Draft()], "must return 1 drafts"),
        ([(1, 2)], "must return a Draft per request, got (1, 2)"),
        ([Draft(token_ids=(1, 2, 3, 4, 5))], "drafted 5 tokens for '0', the maximum is 4"),
        ([Draft(token_ids=(1, 100))], "drafted 100, which is not a token id"),
        ([Draft(token_ids=(-1,))], "drafted -1, which is not a token id"),
        ([Draft(token_ids=(1.0,))], "drafted 1.0, which is not a token id"),  # type: ignore[arg-type]
        ([Draft(token_ids=(True,))], "drafted True, which is not a token id"),
        (7, "got 7"),
        ([Draft(token_ids=None)], "must be a list or tuple, got None"),  # type: ignore[arg-type]
        ([Draft(token_ids=iter((1,)))], "must be a list or tuple, got <"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_that_breaks_the_rules_counts_as_a_failure(answer: Any, complaint: str) -> None:
    watch = Watch()
    host = load(Drafting(lambda asked: answer), watch)
    assert propose(host, batch([1])) == NONE
    host.flush()
    [failure] = watch.failures
    assert complaint in failure.error
    assert (failure.hook, failure.action) == ("propose", "fallback")


def test_failures_are_told_on_the_engines_thread_only() -> None:
    watch = Watch()
    host = load(Drafting(broken), watch)
    device = threading.Thread(target=propose, args=[host, batch([1])])
    device.start()
    device.join()
    assert not watch.failures
    host.flush()
    assert watch.threads == {threading.get_ident()}
    assert watch.failures[0].error == "ValueError: no idea"


def test_after_three_failures_in_a_row_nobody_is_asked_any_more() -> None:
    asked: list[int] = []

    def answer(batch: ProposalBatch) -> Any:
        asked.append(1)
        broken(batch)

    host = load(Drafting(answer))
    for _ in range(5):
        assert propose(host, batch([1])) == NONE
    host.flush()
    assert len(asked) == 3
    [info] = [info for info in host.plugins() if info.name == "Drafting"]
    assert (info.state, info.failures) == ("failed", 3)


def test_a_wrapper_amends_drafts_and_one_that_raises_is_dropped() -> None:
    class Shorter:
        @hookimpl(wrapper=True)
        def propose(self, batch: ProposalBatch) -> Generator[None, Any, Any]:
            drafts = yield
            if len(batch.requests) > 1:
                raise KeyError("more than one")
            return [Draft(token_ids=draft.token_ids[:1]) for draft in drafts]

    host = load(Drafting(lambda b: [Draft(token_ids=(1, 2))] * len(b.requests)), Shorter())
    assert propose(host, batch([5])) == [Draft(token_ids=(1,))]
    assert propose(host, batch([5], [6])) == [Draft(), Draft()]
    assert propose(host, batch([5])) == [Draft(token_ids=(1, 2))]
    host.flush()


def test_a_slow_call_is_warned_about_at_the_flush(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guard, "SLOW_SECONDS", -1.0)
    host = load(Drafting(lambda asked: NONE))
    propose(host, batch([1]))
    assert not [record for record in caplog.records if record.msg == "hook_slow"]
    host.flush()
    assert len([record for record in caplog.records if record.msg == "hook_slow"]) == 1


def test_one_that_exits_the_program_only_fails() -> None:
    def leave(batch: ProposalBatch) -> Any:
        raise SystemExit(3)

    host = load(Drafting(leave))
    assert propose(host, batch([1])) == NONE
    host.flush()
    assert stats_of(host, "propose").failures == 1


def test_one_that_takes_a_draft_model_needs_slots_for_its_kv(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WithModel(Method):
        def prepare(self, support: Any) -> None:
            self.model = support.load_draft_model(Path("small"))
            assert (support.vocab_size, support.num_speculative_tokens) == (100, 4)

    monkeypatch.setattr(guard, "SLOW_SECONDS", -1.0)
    host = load(Drafting(lambda asked: NONE, WithModel()))
    assert host.speculation_limits is not None and host.speculation_limits.needs_lookahead
    propose(host, batch([1]))
    host.flush()
    assert not stats_of(host, "propose").slow  # it computes: that takes its time


def test_one_that_takes_a_draft_head_needs_hidden_states_and_no_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Head(SimulatedDraftModel):
        has_kv_cache = False
        needs_hidden_states = True

    class WithHead(Method):
        def prepare(self, support: Any) -> None:
            self.model = support.load_draft_model(Path("head"))

    monkeypatch.setattr(SimulatedSupport, "load_draft_model", lambda support, path: Head())
    host = load(Drafting(lambda asked: NONE, WithHead()))
    assert host.speculator is not None and host.speculator.needs_hidden_states
    assert not host.speculator.limits.needs_lookahead


def test_one_that_says_so_when_it_is_prepared_needs_hidden_states() -> None:
    class Needing(Method):
        needs_hidden_states = False

        def prepare(self, support: Any) -> None:
            self.needs_hidden_states = support.hidden_size > 0

    for method, expected in ((Needing(), True), (Method(), False)):
        host = load(Drafting(lambda asked: NONE, method))
        assert host.speculator is not None and host.speculator.needs_hidden_states is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ConfigError("another vocabulary"), ConfigError), (KeyError("x"), PluginError)],
)
def test_what_prepare_raises_refuses_the_start(error: Exception, expected: type[Exception]) -> None:
    class Refusing(Method):
        def prepare(self, support: Any) -> None:
            raise error

    with pytest.raises(expected) as caught:
        load(Drafting(broken, Refusing()))
    assert "prepare" in str(caught.value) or "vocabulary" in str(caught.value)
