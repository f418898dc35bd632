"""--kv-events-config: vLLM's keys, one endpoint per replica, and clear refusals."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.registry import Replica
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.plugins.observers.kv_events.publisher import is_bound
from tokenmill.plugins.observers.kv_events.settings import read_settings

ON = {"enable_kv_cache_events": True}


def test_each_replica_adds_its_index_to_the_ports() -> None:
    settings = {**ON, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}
    found = [read_settings(settings, Replica(index=i, count=3)) for i in range(3)]
    assert [(one.endpoint, one.replay_endpoint) for one in found if one is not None] == [
        ("tcp://*:5557", "tcp://*:5657"),
        ("tcp://*:5558", "tcp://*:5658"),
        ("tcp://*:5559", "tcp://*:5659"),
    ]
    on_disk = read_settings({**ON, "endpoint": "ipc:///tmp/e"}, Replica(index=1, count=2))
    assert on_disk is not None and on_disk.endpoint == "ipc:///tmp/e_dp1"


def test_the_defaults_are_vllm_s_on_loopback() -> None:
    settings = read_settings('{"enable_kv_cache_events": true, "publisher": "zmq"}', Replica())
    assert settings is not None
    assert (settings.endpoint, settings.replay_endpoint) == ("tcp://127.0.0.1:5557", None)
    assert (settings.buffer_steps, settings.hwm, settings.topic) == (10_000, 100_000, "")


@pytest.mark.parametrize(
    "given", [None, {}, '{"enable_kv_cache_events": false}', {**ON, "publisher": "null"}]
)
def test_without_a_wish_there_are_no_events(given: Any) -> None:
    assert read_settings(given, Replica()) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ({**ON, "endpont": "x"}, "unknown field `endpont`"),
        ({**ON, "hwm": 0}, "Expected `int` >= 1 - at `$.hwm`"),
        ({**ON, "publisher": "nats"}, "Invalid enum value 'nats'"),
        ({**ON, "endpoint": "localhost:5557"}, "'localhost:5557' is no endpoint; give tcp://"),
        ({**ON, "endpoint": "tcp://*:port"}, "'tcp://*:port' is no endpoint"),
        (
            {**ON, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"},
            "would both use 5558, because each of 2 replicas adds its index",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(given, Replica(index=0, count=2))
    assert message in str(caught.value) and "--kv-events-config" in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "binds"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://127.0.0.1:5557", True),
        ("tcp://0.0.0.0:5557", True),
        ("ipc:///tmp/e", True),
        ("tcp://collector:5557", False),
        ("tcp://10.0.0.7:5557", False),
    ],
)
def test_own_addresses_are_bound_and_others_connected_to(endpoint: str, binds: bool) -> None:
    assert is_bound(endpoint) == binds


def test_without_pyzmq_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    for module in ("observer", "publisher"):
        name = f"tokenmill.plugins.observers.kv_events.{module}"
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ConfigError, match="pip install pyzmq"):
        PluginHost.load(EngineConfig(kv_events_config=ON))
