"""Exceptions that tokenmill raises on purpose.

A user's mistake is reported as one line, a bug as a traceback.
"""

from __future__ import annotations

from asyncio import CancelledError


class TokenmillError(Exception):
    """Base class of tokenmill's exceptions. The message is written for a terminal or a log."""


class ConfigError(TokenmillError):
    """A flag, option, model or plugins.toml is wrong: the engine does not start."""


class UnavailableError(ConfigError):
    """A cluster cannot be joined or has no room at the moment. A server that has already run there
    tries again without limit."""


class PluginError(ConfigError):
    """A plugin cannot be found, loaded or built. The message names the plugin."""


NAME_MARK = "\0"
"""Stands before and after the names of fields in templates of errors."""


def named(field: str) -> str:
    """A field in the template of an error. An API that has another name for it shows that one."""
    return f"{NAME_MARK}{field}{NAME_MARK}"


class InvalidRequestError(TokenmillError):
    """A request is invalid and refused at admission. `param` names the field to change; `code` is
    OpenAI's word for the error, if it has one."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message.replace(NAME_MARK, ""))
        self.template = message
        self.param = param
        self.code = code


TOO_LONG = "context_length_exceeded"
"""The code of a request that does not fit into the model's context."""


class OverloadedError(TokenmillError):
    """A request is refused for now, for example because the queue is full.

    The sender may try again after `retry_after` seconds.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimitedError(OverloadedError):
    """A request is refused because its sender exceeds its rate limit."""


class RequestFailedError(TokenmillError):
    """An accepted request could not be finished. The sender is not the cause."""


class EngineStoppedError(TokenmillError):
    """The engine is lost, closed or closing, and accepts no new requests.

    `reason`: why it is lost. Servers send only `message`, because a reason may have details of the
    machine.
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message if reason is None else f"{message}: {reason}; start a new engine")
        self.message = message


class WrongContextError(TokenmillError):
    """An engine is used outside the event loop or the process in which it was started.

    Its threads and its event loop do not serve others, so a caller would wait forever.
    """


class DeviceError(TokenmillError):
    """The device can no longer compute, for example after a sticky CUDA error. The engine stops.

    `from_outside`: no request is the cause, for example because someone killed a worker.
    """

    def __init__(self, message: str, *, from_outside: bool = False) -> None:
        super().__init__(message)
        self.from_outside = from_outside


def describe(error: BaseException) -> str:
    """Type and text of an exception. Making the text runs its code, which may fail, too."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return name


class HookTimeoutError(BaseException):
    """Raised inside a plugin's hook that runs for too long. It is no Exception, so that code which
    ignores all of them does not ignore this one."""


CONTAINED_WHILE_WAITING = (Exception, SystemExit, HookTimeoutError)
"""Exceptions that count as a failure of the plugin whose coroutine raised them. CancelledError
passes through, because the program cancels what waits."""
CONTAINED = (*CONTAINED_WHILE_WAITING, CancelledError, GeneratorExit)
"""Exceptions that count as a failure of the plugin whose plain function raised them, which nobody
can cancel. KeyboardInterrupt passes through, because it is meant for the program."""
