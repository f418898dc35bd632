"""Notes in a file which test runs, so that the parent process can name it if this process dies."""

from __future__ import annotations

from pathlib import Path

import pytest

ENDED = "ended"
"""The content of the file after a run that came to its end."""


class ProgressFile:
    """A pytest plugin. The file has the id of the current test; "" before the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.write_text(nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._path.write_text(ENDED)
