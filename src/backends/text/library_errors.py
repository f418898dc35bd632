"""Failures of the tokenizers library: it raises plain exceptions, and it panics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...core.errors import TokenmillError
from ..weights.config.fields import one_line


@contextmanager
def failures_as(make: Callable[[str], TokenmillError]) -> Iterator[None]:
    """Raise `make(message)` instead of the library's exceptions and panics."""
    try:
        yield
    except TokenmillError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise make(one_line(error)) from error
        raise
