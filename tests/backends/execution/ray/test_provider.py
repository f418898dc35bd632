"""What the Ray executor refuses before it needs Ray."""

from __future__ import annotations

import importlib.util
import socket
from dataclasses import replace

import pytest

from tokenmill.backends.execution.ray.cluster import join_cluster
from tokenmill.backends.execution.ray.options import RayOptions
from tokenmill.backends.execution.ray.provider import RayProvider
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.provider_options import build_options
from tokenmill.core.errors import ConfigError, PluginError, UnavailableError
from tokenmill.testing.conformance.executor.worker import make_spec


def test_a_missing_package_is_a_reason_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [reason] = RayProvider(RayOptions()).reasons_against(make_spec())
    assert reason == "the package ray is missing: pip install 'ray>=2.60,<3'"


def test_objects_of_the_program_are_reasons() -> None:
    spec = replace(make_spec(), objects=("the object Mine()",))
    reasons = RayProvider(RayOptions()).reasons_against(spec)
    assert "a Ray actor cannot rebuild the object Mine()" in reasons


def test_a_flag_without_effect_is_a_reason() -> None:
    spec = make_spec(EngineConfig(cpu_bind="0"))
    assert any("--cpu-bind" in reason for reason in RayProvider(RayOptions()).reasons_against(spec))


def test_a_plugins_file_that_was_only_found_cannot_name_the_cluster() -> None:
    table = {"address": "10.0.0.1:6379"}
    with pytest.raises(PluginError, match="--plugins-file"):
        build_options(RayOptions, table, where="plugins.toml [executor]", name="ray")
    assert build_options(RayOptions, table, where="own.toml [executor]", name="ray")


def test_the_address_of_a_ray_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(ConfigError, match="must run on a machine of the Ray cluster"):
        join_cluster(None, num_cpus=1, num_gpus=0)


def test_an_address_at_which_nothing_listens_is_an_error_with_host_and_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(UnavailableError, match=f"nothing answers at host 127.0.0.1, port {port}"):
        join_cluster(f"127.0.0.1:{port}", num_cpus=1, num_gpus=0)
    with pytest.raises(ConfigError, match="must be HOST:PORT or auto"):
        join_cluster("127.0.0.1:ray", num_cpus=1, num_gpus=0)
