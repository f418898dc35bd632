"""Screens of `tokenmill serve` on terminals of two sizes, compared with those in screens/.

`TOKENMILL_WRITE_SCREENS=1 pytest -m check tests/check/console` writes them again. The terminal is
pyte on a pseudo-terminal: pip installs it on every machine, and the screen is read without waiting.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.terminal import Terminal, address_of, masked, on_terminal

from .compiling_serve import LIBRARY

pytestmark = pytest.mark.check
ROOT = Path(__file__).resolve().parents[3]
SCREENS = Path(__file__).parent / "screens"
PROGRAM = (sys.executable, "-m", "tests.check.console.compiling_serve")
CACHE = "cache"
SIZES = [(80, 24), (100, 30)]
BARS = "━╌"
EVENTS = ("warning", "error", "cached_file_is_damaged", "cpu_kernels_not_built")


@contextmanager
def serving(folder: Path, size: tuple[int, int], **environment: str) -> Iterator[Terminal]:
    """A server whose cache is in a folder. Its path is relative, so that its length is known."""
    environment = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": CACHE, "NO_COLOR": "1",
                   "TOY_LOAD_SECONDS": "0.4", **environment}  # fmt: skip
    columns, lines = size
    with on_terminal(
        PROGRAM, columns=columns, lines=lines, environment=environment, folder=folder
    ) as terminal:
        yield terminal
    assert any(char in line for line in terminal.seen for char in BARS), "bars were shown"
    for line in terminal.seen:
        assert not (any(char in line for char in BARS) and any(e in line for e in EVENTS)), line


def check_screen(terminal: Terminal, name: str) -> None:
    """The screen becomes the committed one, without times."""
    path = SCREENS / f"{terminal.screen.columns}x{terminal.screen.lines}-{name}.txt"
    if os.environ.get("TOKENMILL_WRITE_SCREENS"):
        text = terminal.wait_until(lambda _: False)
        path.write_text(masked(text) + "\n", encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    text = terminal.wait_until(lambda text: masked(text) + "\n" == expected)
    assert masked(text) + "\n" == expected


def ask(terminal: Terminal) -> None:
    """Send a request that is answered, one that is refused, and one that Ctrl-C finds running."""
    headers = {"X-Request-Id": "0123456789" * 4}
    with httpx.Client(
        base_url=address_of(terminal.text()), timeout=60, trust_env=False, headers=headers
    ) as http:
        body = {"prompt": "abc", "max_tokens": 4, "ignore_eos": True}
        assert http.post("/v1/completions", json=body).status_code == 200
        assert http.post("/v1/nothing", json=body).status_code == 404
        long = body | {"max_tokens": 200, "stream": True}
        with http.stream("POST", "/v1/completions", json=long) as answer:
            lines = answer.iter_lines()
            next(lines)
            terminal.press("\x03")
            terminal.wait_for("Ctrl-C again stops now")
            *_, last = filter(None, lines)
        assert last == "data: [DONE]"
    assert terminal.wait() == 0


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_first_and_second_start_and_one_with_a_damaged_cache(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    with serving(tmp_path, size) as terminal:
        terminal.wait_for("tokenmill chat --url")
        check_screen(terminal, "first-start")
        ask(terminal)
        check_screen(terminal, "after-ctrl-c")
    with serving(tmp_path, size) as terminal:
        terminal.wait_for("tokenmill chat --url")
        check_screen(terminal, "second-start")
    library = tmp_path / CACHE / "tokenmill" / LIBRARY
    library.write_bytes(library.read_bytes()[:-1])
    with serving(tmp_path, size) as terminal:
        terminal.wait_for("tokenmill chat --url")
        check_screen(terminal, "damaged-cache")
    assert any("of about" in line for line in terminal.seen), "the last start's times are expected"


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_start_with_errors(tmp_path: Path, size: tuple[int, int]) -> None:
    with serving(tmp_path, size, CXX="missing-compiler", TOY_START_FAULT="E") as terminal:
        assert terminal.wait() == 1
        check_screen(terminal, "errors")
