"""A key in the command line is named as visible, and the other ways to give it are named, too."""

from __future__ import annotations

import argparse

import pytest

from tokenmill.api.commands.flags.config_file import add_config_flag
from tokenmill.api.commands.flags.keys import add_key_flags, warn_of_visible_keys
from tokenmill.core.log import event_fields


def warned(caplog: pytest.LogCaptureFixture, *flags: str) -> str:
    parser = argparse.ArgumentParser()
    add_key_flags(parser)
    add_config_flag(parser)
    warn_of_visible_keys(parser.parse_args(flags))
    return " ".join(str(event_fields(record)) for record in caplog.records)


def test_a_key_in_the_command_line_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    text = warned(caplog, "--api-key", "sk-secret")
    assert "`ps` shows it" in text
    assert "TOKENMILL_API_KEY or --api-key-file" in text
    assert "sk-secret" not in text


def test_an_admin_key_in_the_command_line_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert "TOKENMILL_ADMIN_KEY" in warned(caplog, "--admin-key", "sk-secret")


def test_keys_from_elsewhere_are_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENMILL_API_KEY", "sk-secret")
    assert warned(caplog, "--api-key-file", "keys.toml") == ""
