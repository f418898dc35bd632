"""Orders the frames of a formatted traceback: authors of plugins see their own code first."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pluggy

_FRAME = r'  File "(?P<file>.*)", line .*\n(?:    .*\n)*'
_RUN = re.compile(rf"(?:^{_FRAME.replace('?P<file>', '?:')})+", re.MULTILINE)
_ONE = re.compile(f"^{_FRAME}", re.MULTILINE)
_PACKAGE = str(Path(__file__).parents[1])
_OWN_PLUGINS = f"{_PACKAGE}/plugins/"
_PLUGGY = str(Path(pluggy.__file__).parent)
_INSTALLED = str(Path(pluggy.__file__).parents[1])
"""The folder of installed packages, usually inside that of the standard library."""
_PYTHON = (sysconfig.get_path("stdlib"), "<")


def plugin_frames_first(text: str) -> str:
    """A formatted traceback whose frames begin with the first one of a plugin.

    The frames that led to it follow. A traceback without a plugin's frames stays as it is.
    """
    return _RUN.sub(lambda run: _reordered(run[0]), text)


def _reordered(run: str) -> str:
    frames = [(found["file"], found[0]) for found in _ONE.finditer(run)]
    first = next((i for i, (file, _) in enumerate(frames) if _is_of_plugin(file)), 0)
    if first == 0:
        return run
    texts = [text for _, text in frames]
    return "".join((*texts[first:], "  called from:\n", *texts[:first]))


def _is_of_plugin(file: str) -> bool:
    if file.startswith((_PACKAGE, _PLUGGY)):
        return file.startswith(_OWN_PLUGINS)
    return file.startswith(_INSTALLED) or not file.startswith(_PYTHON)
