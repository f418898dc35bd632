"""`tokenmill plugins list`: third-party plugins first, then one row per slot, in 80 columns."""

from __future__ import annotations

import sys

import pytest

from tokenmill.api.cli import main
from tokenmill.api.commands.plugins.listing import print_details, print_plugins
from tokenmill.core.contract.plugin_info import PluginInfo, PluginState
from tokenmill.core.kinds import SLOTS


def plugin(
    name: str,
    distribution: str,
    *provides: str,
    hooks: tuple[str, ...] = (),
    state: PluginState = "enabled",
    error: str | None = None,
) -> PluginInfo:
    """A plugin whose first provider is chosen."""
    return PluginInfo(
        name=name,
        distribution=distribution,
        version="1.0",
        state=state,
        provides=provides,
        chosen=provides[:1],
        hooks=("register", *hooks),
        error=error,
    )


PLUGINS = (
    plugin("orders", "tokenmill", "scheduling_policy:fcfs"),
    plugin("chunked", "tokenmill", "scheduler:chunked", hooks=("schedule",)),
    plugin("fair", "acme-fair", "scheduler:fair", "scheduler:slow", hooks=("schedule",)),
    plugin("audit", "acme-audit", hooks=("on_step",)),
    plugin("broken", "acme-audit", state="failed", error="no module named acme"),
    plugin("idle", "acme-idle", state="available"),
)


def become_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the captured output be a terminal with 80 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_third_party_plugins_come_first_and_each_slot_has_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    become_terminal(monkeypatch)
    print_plugins(PLUGINS)
    assert words(capsys.readouterr().out)[:-1] == [
        ["THIRD-PARTY", "PLUGIN", "STATE", "PROVIDERS", "(*", "chosen);", "HOOKS", "FROM"],
        ["fair", "enabled", "scheduler:fair*,", "scheduler:slow;", "acme-fair", "1.0"],
        ["schedule"],
        ["audit", "enabled", "on_step", "acme-audit", "1.0"],
        ["broken", "failed", "-", "acme-audit", "1.0"],
        ["idle", "available", "-", "acme-idle", "1.0"],
        [],
        ["SLOT", "TIER", "PROVIDERS", "(*", "chosen)"],
        ["scheduler", "stable", "fair*,", "slow,", "chunked*"],
        ["scheduling_policy", "stable", "fcfs*"],
        [],
        ["not", "enabled:", "idle"],
        [],
        ["broken:", "no", "module", "named", "acme"],
        [],
    ]


def test_details_are_a_row_for_each_plugin_by_slot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    become_terminal(monkeypatch)
    print_details(PLUGINS)
    names = [line[0] for line in words(capsys.readouterr().out) if line]
    assert names == ["PLUGIN", "fair", "audit", "broken", "idle", "chunked", "orders", "broken:"]


@pytest.mark.parametrize("verbose", [[], ["--verbose"]])
def test_the_installed_plugins_fit_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verbose: list[str]
) -> None:
    become_terminal(monkeypatch)
    assert main(["plugins", "list", *verbose]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for slot in SLOTS:
        assert slot in text
