"""The source of messages: a prompt with prompt_toolkit, a plain one, or standard input."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from ....core.errors import ConfigError
from .commands import completions, is_command
from .interrupts import ctrl_c_raised

PROMPT = ">>> "
CONTINUED = "... "
QUOTES = '"""'
"""Begins and ends a message of several lines."""
HISTORY_BYTES = 1 << 20
"""Maximum size of the history when a chat begins."""


class Prompt(Protocol):
    """Reads messages."""

    def read(self) -> str:
        """The next message or command, without white space around it; "" for an empty line.

        Raises EOFError at the end, and KeyboardInterrupt at Ctrl-C.
        """
        ...


def make_prompt(tell: Callable[[str], None]) -> Prompt:
    """A prompt for a terminal. Without prompt_toolkit it is a plain one, and `tell` reports it."""
    try:
        from prompt_toolkit import PromptSession  # noqa: F401
    except ImportError:
        tell("for history, completion and editing: pip install prompt_toolkit")
        return PlainPrompt(_read_plain)
    return EditedPrompt(history_file(tell))


def piped_prompt() -> Prompt:
    """Messages from the lines of standard input."""

    def read(prompt: str) -> str:
        if sys.stdin.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.buffer.readline().decode()
        except UnicodeDecodeError as error:
            raise ConfigError(
                "standard input is not UTF-8; convert it, for example with iconv"
            ) from error
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    return PlainPrompt(read)


def is_open(text: str) -> bool:
    """Whether a message has begun with three quotes, and not ended with them yet."""
    found = text.strip()
    return found.startswith(QUOTES) and not (len(found) >= 6 and found.endswith(QUOTES))


def message_of(text: str) -> str:
    """A message without its quotes. A space at its beginning marks a text that looks like a
    command, so it stays there."""
    if is_command(text):
        return text.strip()
    found = text.strip()
    if found.startswith(QUOTES) and not is_open(found):
        found = found[3:-3].strip()
    return f" {found}" if found.startswith("/") else found


class PlainPrompt:
    """Reads messages line by line with `read`, which shows a prompt."""

    def __init__(self, read: Callable[[str], str]) -> None:
        self._read = read

    def read(self) -> str:
        text = self._read(PROMPT)
        try:
            while is_open(text):
                text += "\n" + self._read(CONTINUED)
        except EOFError:
            text += QUOTES
        return message_of(text)


def _read_plain(prompt: str) -> str:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - input() uses it
    with ctrl_c_raised():
        return input(prompt)


class EditedPrompt:
    """Reads messages with prompt_toolkit: history, completion, and pasted text as one message."""

    def __init__(self, history: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory

        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(history) if history else InMemoryHistory(),
            completer=_completer(),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=CONTINUED,
            enable_open_in_editor=True,
            enable_suspend=True,
        )

    def read(self) -> str:
        return message_of(self._session.prompt(PROMPT, handle_sigint=False))


def _completer() -> Any:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Commands(Completer):
        """Completes commands, their settings and their files."""

        def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
            text = document.text_before_cursor
            if is_command(text):
                word = text if " " not in text else text.partition(" ")[2].rpartition(" ")[2]
                for found in completions(text):
                    yield Completion(found, start_position=-len(word))

    return Commands()


def _keys() -> Any:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def alt_enter(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    def ctrl_c(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.app.exit(result="")  # as a shell does: the line stays on the screen
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def history_file(tell: Callable[[str], None]) -> Path | None:
    """The file of earlier messages, which only this user can read; None if there can be none."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        folder = (Path(state) if state else Path.home() / ".local" / "state") / "tokenmill"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = folder / "chat_history"
        os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        file.chmod(0o600)
        _shorten(file)
    except (OSError, RuntimeError) as error:
        tell(f"there is no history: {error}")
        return None
    return file


def _shorten(file: Path) -> None:
    """Keep the newer half of a history that is too long. An entry begins with a line "# TIME"."""
    text = file.read_bytes()
    if len(text) > HISTORY_BYTES:
        file.write_bytes(text[text.find(b"\n#", len(text) - HISTORY_BYTES // 2) :])
