"""Silences the engine's logs in simulations, which would log thousands of events."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logs() -> Iterator[None]:
    """A context in which the engine logs nothing below CRITICAL."""
    logger = logging.getLogger("tokenmill")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
