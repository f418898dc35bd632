"""`--attention-backend auto`: the first backend, in the order of preference, with no reason against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .errors import PluginError
from .log import get_logger

log = get_logger("plugins")


class AutoBackend:
    """Looks like a backend's class, and makes one of the first that can serve the spec.

    Each is imported only when it is asked, so that what is behind the first that can is never loaded.
    """

    name = "auto"

    def __init__(self, candidates: Sequence[tuple[str, Callable[[], Any]]]) -> None:
        """Names, and what builds the backend's class."""
        self._candidates = tuple(candidates)

    def reasons_against(self, spec: Any) -> list[str]:
        """Nothing if any of them can, else all reasons of all of them."""
        chosen, reasons = self._choose(spec)
        return [] if chosen is not None else reasons

    def __call__(self, spec: Any) -> Any:
        """The chosen backend for this spec; says which it is, and why others were passed over."""
        chosen, reasons = self._choose(spec)
        assert chosen is not None, "it is asked for reasons before"
        backend = chosen(spec)
        log.info("attention_backend_chosen", backend=backend.name, passed_over=reasons)
        return backend

    def _choose(self, spec: Any) -> tuple[Any, list[str]]:
        passed_over: list[str] = []
        for name, build in self._candidates:
            try:
                backend = build()
                reasons = backend.reasons_against(spec)
            except PluginError as error:
                reasons = [str(error)]
            if not reasons:
                return backend, passed_over
            passed_over += [f"{name}: {reason}" for reason in reasons]
        return None, passed_over
