"""--chat-template: a file with a template, or the template itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ....core.errors import ConfigError
from ...weights.files.bounded import read_bounded

_LINE_BREAK = re.compile(r"(?<!\\)\\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTemplate:
    """A chat template that replaces the model's own."""

    text: str
    name: str
    """For errors."""


def read_chat_template(given: str) -> GivenTemplate:
    r"""Read a file, or take the text as the template if there is no such file.

    In a text of one line, \n is a line break, as in vLLM. Raises ConfigError if the file cannot be
    read, and for a text without any Jinja, which is probably a path.
    """
    file = Path(given).expanduser()
    try:
        if file.is_file():
            return GivenTemplate(text=read_bounded(file).decode("utf-8"), name=str(file))
    except (OSError, ValueError) as error:
        if not _is_template(given):  # else it is too long for a path
            raise ConfigError(f"--chat-template {given:.80} cannot be read: {error}") from error
    if not _is_template(given):
        raise ConfigError(f"--chat-template {given:.80} is neither a file nor a Jinja template")
    text = given if "\n" in given else _LINE_BREAK.sub("\n", given)
    return GivenTemplate(text=text, name="--chat-template")


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text
