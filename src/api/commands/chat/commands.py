"""The commands of a chat, such as /clear: they change the session and say what they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....core.errors import TokenmillError
from ....core.wording.suggest import did_you_mean, near_and_known
from ..flags.sampling import SAMPLING, read_sampling
from .images import read_image
from .session import Session

NO_SYSTEM = "none"
"""The text with which /system removes the system message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The next action of a chat after a command."""

    text: str = ""
    """The command's answer."""
    message: str | None = None
    """A message to send to the model."""
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its argument, what it does, and the function."""

    argument: str
    help: str
    run: Callable[[Session, str], Outcome]
    is_required: bool = False


def is_command(text: str) -> bool:
    """Whether a message is a command: one line with "/" at its beginning."""
    return text.startswith("/") and "\n" not in text.strip()


def run_command(session: Session, line: str) -> Outcome:
    """Run a command. Raises TokenmillError if it is unknown or cannot be done."""
    name, _, argument = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise TokenmillError(
            f"unknown command {name}{did_you_mean(name, COMMANDS) or '.'} /help lists all; a space "
            "before it sends it as a message"
        )
    argument = argument.strip()
    if command.is_required and not argument:
        raise TokenmillError(f"{name} needs an argument: {name} {command.argument}")
    if argument and not command.argument:
        raise TokenmillError(f"{name} takes no argument")
    return command.run(session, argument)


def completions(text: str) -> Sequence[str]:
    """The words that may stand at the end of this beginning of a command, whole."""
    name, space, argument = text.partition(" ")
    if not space:
        return [
            f"{known} " if command.argument else known
            for known, command in COMMANDS.items()
            if known.startswith(name)
        ]
    word = argument.rpartition(" ")[2]
    if name == "/set":
        return [f"{option}=" for option in SAMPLING if option.startswith(word)]
    if name in ("/save", "/load", "/image"):
        return _files(argument)
    return []


def _files(beginning: str) -> list[str]:
    folder, slash, name = beginning.rpartition("/")
    try:
        entries = sorted(_path(f"{folder}{slash}" or ".").iterdir())
    except OSError:
        return []
    return [
        f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(name) and (name or not entry.name.startswith("."))
    ]


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # there is no such user
        return Path(text)


def _help(session: Session, argument: str) -> Outcome:
    rows = [(f"{name} {command.argument}", command.help) for name, command in COMMANDS.items()]
    return Outcome(text="\n".join([*_rows(rows), "", *_rows(KEYS.items())]))


def _clear(session: Session, argument: str) -> Outcome:
    session.clear()
    return Outcome(text="the conversation is empty")


def _system(session: Session, argument: str) -> Outcome:
    if argument:
        session.system = None if argument == NO_SYSTEM else argument
    return Outcome(text=f"system message: {session.system or NO_SYSTEM}")


def _set(session: Session, argument: str) -> Outcome:
    changes = [_read_change(word) for word in argument.split()]
    for name, value in changes:
        session.set_option(name, value)
    return Outcome(text=_options(session))


def _read_change(word: str) -> tuple[str, Any]:
    """The parameter and the value of "name=value"; None for an empty value."""
    name, sign, text = word.partition("=")
    if name not in SAMPLING:
        raise TokenmillError(f"unknown setting {name!r}{near_and_known(name, SAMPLING)}")
    if not sign:
        raise TokenmillError(f"{name} needs a value: /set {name}=VALUE, or {name}= for the default")
    return name, read_sampling(name, text) if text else None


def _show(session: Session, argument: str) -> Outcome:
    partner, rows = session.partner, []
    length = partner.context_length
    rows.append(("model", f"{partner.model} ({partner.place})"))
    rows.append(("context", f"{length} tokens" if length else "unknown"))
    rows.append(("system message", session.system or NO_SYSTEM))
    rows.append(("settings", _options(session)))
    rows.append(("messages", str(len(session.turns))))
    rows.append(("last answer", session.last.describe() if session.last else NO_SYSTEM))
    return Outcome(text="\n".join(_rows(rows)))


def _save(session: Session, argument: str) -> Outcome:
    session.save(_path(argument))
    return Outcome(text=f"saved {len(session.messages)} messages to {argument}")


def _load(session: Session, argument: str) -> Outcome:
    session.load(_path(argument))
    rest = "; /retry asks for an answer to the last one" if session.unanswered else ""
    return Outcome(text=f"loaded {len(session.messages)} messages from {argument}{rest}")


def _image(session: Session, argument: str) -> Outcome:
    session.images.append(read_image(_path(argument)))
    count = len(session.images)
    return Outcome(text=f"the next message has {count} image{'s' if count > 1 else ''}")


def _retry(session: Session, argument: str) -> Outcome:
    return Outcome(message=_undone(session))


def _undo(session: Session, argument: str) -> Outcome:
    text = _undone(session)
    session.images = []
    return Outcome(text=f"removed: {text.splitlines()[0]}")


def _undone(session: Session) -> str:
    text = session.undo()
    if text is None:
        raise TokenmillError("the conversation is empty")
    return text


def _tokens(session: Session, argument: str) -> Outcome:
    length, count = session.partner.context_length, session.num_tokens
    if count is None:
        return Outcome(text="unknown before the first answer")
    limit = f" of {length}" if length else ""
    return Outcome(text=f"about {count}{limit} tokens")


def _bye(session: Session, argument: str) -> Outcome:
    return Outcome(leaves=True)


def _options(session: Session) -> str:
    given = [f"{name}={value}" for name, value in session.options.items()]
    return " ".join(given) or "the model's defaults"


def _rows(pairs: Any) -> list[str]:
    pairs = list(pairs)
    width = max(len(left) for left, _ in pairs)
    return [f"{left:{width}}  {right}".rstrip() for left, right in pairs]


COMMANDS: Mapping[str, Command] = {
    "/help": Command("", "list commands and keys", _help),
    "/clear": Command("", "forget the conversation", _clear),
    "/system": Command("[TEXT]", f"show or set the system message; {NO_SYSTEM}: none", _system),
    "/set": Command("[NAME=VALUE]", "show or set sampling: /set temperature=0.2", _set),
    "/show": Command("", "show model, settings, and statistics of the last answer", _show),
    "/save": Command("FILE", "write the conversation to a JSON file", _save, True),
    "/load": Command("FILE", "continue the conversation of a JSON file", _load, True),
    "/image": Command("FILE", "add an image to the next message", _image, True),
    "/retry": Command("", "answer the last message again", _retry),
    "/undo": Command("", "remove the last message and its answer", _undo),
    "/tokens": Command("", "show how much of the context is used", _tokens),
    "/bye": Command("", "leave", _bye),
}
KEYS: Mapping[str, str] = {
    '"""': "begins and ends a message of several lines",
    "Ctrl-C": "stops an answer and keeps its text; twice at an empty prompt: leaves",
    "Ctrl-D": "leaves",
}
