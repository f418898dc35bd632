"""Simulations log thousands of preemptions and failures; they count them instead."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Nothing below CRITICAL from the engine while this is entered."""
    logger = logging.getLogger("tokenmill")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
