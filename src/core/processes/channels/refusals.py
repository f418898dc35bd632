"""Exceptions as messages. Only tokenmill's own travel: their texts are meant for users."""

from __future__ import annotations

from ... import errors
from .messages import NotStarted, Refused


def describe_refusal(number: int, error: errors.TokenmillError) -> Refused:
    """The message for an exception of `submit`."""
    return Refused(
        number,
        type(error).__name__,
        getattr(error, "template", str(error)),
        param=getattr(error, "param", None),
        retry_after=getattr(error, "retry_after", 1.0),
    )


def not_started(error: BaseException, who: str) -> NotStarted:
    """The message for an exception of the start of a process."""
    if isinstance(error, errors.TokenmillError):
        return NotStarted(type(error).__name__, str(error))
    text = f"{who} failed to start: {errors.describe(error)}"
    return NotStarted(errors.TokenmillError.__name__, text)


def raised_by(message: Refused | NotStarted) -> errors.TokenmillError:
    """The exception that a message describes."""
    kind: type[errors.TokenmillError] = getattr(errors, message.error, errors.TokenmillError)
    if isinstance(message, Refused) and issubclass(kind, errors.InvalidRequestError):
        return kind(message.text, param=message.param)
    if isinstance(message, Refused) and issubclass(kind, errors.OverloadedError):
        return kind(message.text, retry_after=message.retry_after)
    return kind(message.text)
