"""A traceback for people begins with the frames of the plugin that failed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pluggy

import tokenmill
from tokenmill.core.log import EventFormatter
from tokenmill.core.wording.tracebacks import plugin_frames_first

ENGINE = f"{Path(tokenmill.__file__).parent}/core/engine/step.py"
OWN = f"{Path(tokenmill.__file__).parent}/plugins/orders/fcfs.py"


def frame(file: str) -> str:
    return f'  File "{file}", line 3, in act\n    act()\n    ~~~^^\n'


def trace(*files: str) -> str:
    frames = "".join(map(frame, files))
    return f"Traceback (most recent call last):\n{frames}KeyError: 'planted'"


def files_of(text: str) -> list[str]:
    return [line.split('"')[1] if '"' in line else line for line in text.splitlines()
            if line.startswith("  File") or line.endswith("from:")]  # fmt: skip


def test_the_frames_from_the_first_one_of_the_plugin_come_first() -> None:
    given = [json.__file__, ENGINE, pluggy.__file__, "/home/me/acme.py", json.__file__, ENGINE]
    found = plugin_frames_first(trace(*given))
    assert files_of(found) == [*given[3:], "  called from:", *given[:3]]
    assert found.startswith("Traceback") and found.endswith("\nKeyError: 'planted'")
    assert sorted(found.splitlines()) == sorted([*trace(*given).splitlines(), "  called from:"])


def test_a_plugin_may_be_an_installed_package_or_one_of_ours() -> None:
    installed = str(Path(pluggy.__file__).parents[1] / "acme/scheduler.py")
    for plugin in (installed, OWN):
        assert files_of(plugin_frames_first(trace(ENGINE, plugin)))[0] == plugin


def test_without_a_plugins_frames_nothing_changes() -> None:
    for text in (trace(ENGINE, json.__file__), "no traceback", ""):
        assert plugin_frames_first(text) == text


def test_both_tracebacks_of_a_chain_are_ordered() -> None:
    chain = f"{trace(ENGINE, '/a.py')}\n\nDuring handling:\n\n{trace(ENGINE, '/b.py')}"
    found = files_of(plugin_frames_first(chain))
    assert found == ["/a.py", "  called from:", ENGINE, "/b.py", "  called from:", ENGINE]


def test_text_lines_show_an_exception_below_the_event() -> None:
    fields = {"msg": "plugin_failed", "plugin": "acme", "exception": trace(ENGINE, "/acme.py")}
    text = EventFormatter("%(message)s").format(logging.makeLogRecord(fields))
    first, second, third, *_ = text.splitlines()
    assert first == "plugin_failed plugin='acme'"
    assert second.startswith("Traceback") and '"/acme.py"' in third
