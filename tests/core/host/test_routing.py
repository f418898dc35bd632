"""The router behind its guard: whatever it does, a request gets a replica."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.plugin_info import PluginInfo, Source
from tokenmill.core.contract.providers.routing import ReplicaView
from tokenmill.core.errors import PluginError
from tokenmill.core.host.routing import GuardedRouter, build_router
from tokenmill.core.supervised.link import IDLE

VIEWS = [ReplicaView(index=i, num_requests=3 - i, num_blocks=1, load=IDLE) for i in range(2)]
REQUEST: Any = object()
INFO = PluginInfo(name="mine", distribution="mine", version="1", state="enabled")


class Scripted:
    """Answers the given values, and raises those that are exceptions."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def route(self, request: Any, replicas: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget(self, index: int) -> None:
        raise RuntimeError("broken")


def test_its_answer_counts() -> None:
    assert GuardedRouter(Scripted(0), Source(plugin="mine")).route(REQUEST, VIEWS) == 0


@pytest.mark.parametrize("answer", [RuntimeError("broken"), 7, None, True, "1"])
def test_a_failure_sends_the_request_to_the_least_loaded_replica(answer: Any) -> None:
    router = GuardedRouter(Scripted(answer, 0), Source(plugin="mine"))
    assert [router.route(REQUEST, VIEWS) for _ in range(2)] == [1, 0]
    assert router.with_failures([INFO])[0].failures == 1
    assert [stats.failures for stats in router.hook_stats()] == [1, 0]


def test_after_three_failures_in_a_row_it_is_not_asked_any_more() -> None:
    router = GuardedRouter(Scripted(7, 7, 7, 0), Source(plugin="mine"))
    assert [router.route(REQUEST, VIEWS) for _ in range(5)] == [1] * 5
    [info] = router.with_failures([INFO])
    assert (info.state, info.failures) == ("failed", 3)


def test_a_router_that_cannot_forget_goes_on_until_it_has_failed_three_times() -> None:
    router = GuardedRouter(Scripted(0, 0), Source(plugin="mine"))
    router.forget(0)
    assert router.route(REQUEST, VIEWS) == 0
    for _ in range(5):
        router.forget(0)
    assert router.route(REQUEST, VIEWS) == 1


def test_flags_and_files_choose_it(tmp_path: Path) -> None:
    file = tmp_path / "plugins.toml"
    file.write_text('[router]\nuse = "prefix-aware"\ntokens_per_request = -1\n')
    with pytest.raises(PluginError, match=r"\[router\].*tokens_per_request"):
        build_router(EngineConfig(plugins_file=str(file)))
    with pytest.raises(PluginError, match=r"no router named 'prefix-awar'.*prefix-aware"):
        build_router(EngineConfig(router="prefix-awar", data_parallel_size=2))
    build_router(EngineConfig(router="round_robin", data_parallel_size=2))
