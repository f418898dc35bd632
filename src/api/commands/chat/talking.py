"""The loop of a chat: reads messages and commands, and shows answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress

from ....core.errors import TokenmillError
from .commands import is_command, run_command
from .interrupts import ctrl_c_ignored, ctrl_c_raised
from .prompt import Prompt
from .session import Session
from .view import View

LEAVE_HINT = "Ctrl-C again, Ctrl-D or /bye leaves"


class Chat:
    """One conversation at a prompt. `tell` shows all text except answers, line by line."""

    def __init__(
        self,
        session: Session,
        tell: Callable[[str], None],
        make_view: Callable[[], View],
        *,
        shows_statistics: bool = False,
    ) -> None:
        self._session = session
        self._tell = tell
        self._make_view = make_view
        self._shows_statistics = shows_statistics

    def talk(self, prompt: Prompt) -> None:
        """Follow a person at a terminal: errors and Ctrl-C end an answer, not the chat."""
        with ctrl_c_ignored():
            num_interrupts = 0
            while num_interrupts < 2:
                try:
                    text = prompt.read()
                except EOFError:
                    return
                except KeyboardInterrupt:
                    num_interrupts += 1
                    if num_interrupts == 1:
                        self._tell(LEAVE_HINT)
                    continue
                num_interrupts = 0
                if not self._try(text):
                    return

    def _try(self, text: str) -> bool:
        """Like `follow`, but errors and Ctrl-C are only shown."""
        goes_on = True
        try:
            goes_on = self.follow(text)
        except TokenmillError as error:
            self._tell(f"error: {error}")
        except KeyboardInterrupt:
            self._tell("stopped")
        if text and goes_on:
            self._tell("")
        return goes_on

    def read(self, prompt: Prompt) -> None:
        """Follow a pipe to its end. Raises TokenmillError for the first message or command that
        fails."""
        with suppress(EOFError):
            while self.follow(prompt.read()):
                pass

    def follow(self, text: str) -> bool:
        """Answer a message, or run a command. Returns whether the chat goes on.

        Raises TokenmillError.
        """
        if is_command(text):
            outcome = run_command(self._session, text)
            if outcome.text:
                self._tell(outcome.text)
            if outcome.leaves:
                return False
            text = outcome.message or ""
        if text.strip():
            self.answer(text.strip())
        return True

    def answer(self, text: str) -> None:
        """Send a message, and show the answer. Raises TokenmillError."""
        session, is_complete = self._session, False
        view = self._make_view()
        try:
            with ctrl_c_raised(), closing(session.ask(text)) as pieces:
                for piece in pieces:
                    view.show(piece)
            is_complete = True
        finally:
            view.end(is_complete=is_complete)
            for notice in session.notices:
                self._tell(notice)
        if self._shows_statistics and session.last:
            self._tell(session.last.describe())
