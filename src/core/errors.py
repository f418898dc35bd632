"""What tokenmill raises on purpose. A user's mistake is one line; a bug is a traceback."""

from __future__ import annotations


class TokenmillError(Exception):
    """Base of every deliberate error; its message is for the reader of a terminal or a log."""


class ConfigError(TokenmillError):
    """A flag, option, model or plugins.toml is wrong: the engine does not start."""


class PluginError(ConfigError):
    """A plugin cannot be found, loaded or built; names plugin, distribution and what is known."""


class InvalidRequestError(TokenmillError):
    """A request is refused at admission: `param` names the field to change."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class OverloadedError(TokenmillError):
    """A request is refused for now: try again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimitedError(OverloadedError):
    """A request is refused because its sender asks too often; others may come in."""


class RequestFailedError(TokenmillError):
    """An accepted request could not be finished, through no fault of its sender."""


class EngineStoppedError(TokenmillError):
    """The engine is closed or closing and takes no more requests."""


class DeviceError(TokenmillError):
    """The device can compute no more (a sticky CUDA error, say): the engine ends and says so."""


CONTAINED = (Exception, SystemExit)
"""Exceptions of a plugin that count as its failure. KeyboardInterrupt and CancelledError pass through:
they are meant for the program."""
