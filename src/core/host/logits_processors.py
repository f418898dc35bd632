"""The logits processors of the enabled plugins: which a request uses, and whether it may."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..contract.plugin_info import Source
from ..contract.providers.logits_processor import ProcessorClass
from ..errors import CONTAINED, InvalidRequestError, PluginError, RequestFailedError
from ..requests.sampling_params import SamplingParams
from ..wording.suggest import near_and_known
from .calling.failure_log import FailureLog
from .calling.guard import ADMITS, Guard


class ProcessorUse(NamedTuple):
    names: tuple[str, ...] = ()
    allows_drafts: bool = True
    """Whether all of them work with draft tokens."""


@dataclass(frozen=True, slots=True)
class FoundProcessor:
    """A processor's class and the plugin that offers it."""

    kind: ProcessorClass
    source: Source


class LogitsProcessors:
    """All processors by name, in the order of their plugins.

    Raises PluginError if two of them have an argument in common.
    """

    def __init__(self, found: Mapping[str, FoundProcessor], log: FailureLog) -> None:
        self.classes = {name: one.kind for name, one in found.items()}
        self._by_argument: dict[str, str] = {}
        self._checks: dict[str, Guard] = {}
        self._applies: dict[str, Guard] = {}
        self._found, self._log = found, log
        self._reports: deque[Callable[[], None]] = deque()  # short: each commit empties it
        for name, one in found.items():
            self._checks[name] = Guard(one.kind.check, one.source, "check", ADMITS, log)
            for argument in one.kind.arguments:
                other = self._by_argument.setdefault(argument, name)
                if other != name:
                    raise PluginError(
                        f"the logits processors {other!r} and {name!r} both read the argument "
                        f"{argument!r}; disable one of their plugins in plugins.toml"
                    )

    @property
    def guards(self) -> tuple[Guard, ...]:
        return (*self._checks.values(), *self._applies.values())

    def watch(self, name: str, apply: Callable[..., None]) -> Guard:
        """A guard that calls the `apply` of a processor that was built, on the device thread."""
        report = self._reports.append
        guard = Guard(apply, self._found[name].source, "apply", ADMITS, self._log, later=report)
        self._applies[name] = guard
        return guard

    def flush(self) -> None:
        """Send reports of the device thread to logs and observers. Call it on the engine thread."""
        while self._reports:
            self._reports.popleft()()

    def used_by(self, params: SamplingParams) -> ProcessorUse:
        """The processors that a request uses, once they accept its arguments.

        Raises InvalidRequestError for an unknown or invalid argument, and RequestFailedError for a
        processor that fails.
        """
        given = params.extra_args or {}
        unknown = [name for name in given if name not in self._by_argument]
        if unknown:
            near = near_and_known(unknown[0], self._by_argument)
            raise _invalid(f"no logits processor reads the argument {unknown[0][:64]!r}{near}")
        wanted = {self._by_argument[argument] for argument in given}
        names = tuple(name for name, kind in self.classes.items() if kind.always or name in wanted)
        for name in names:
            own = self.classes[name].arguments
            self._check(name, {one: given[one] for one in own if one in given})
        return ProcessorUse(names, all(self.classes[name].allows_drafts for name in names))

    def _check(self, name: str, arguments: Mapping[str, object]) -> None:
        guard = self._checks[name]
        try:
            guard.call(arguments)
        except ValueError as error:
            example = dict(self.classes[name].example)
            raise _invalid(f"{error} (logits processor {name!r}; example: {example})") from error
        except CONTAINED as error:
            guard.fail(error)
            raise RequestFailedError(
                f"the arguments could not be checked: {guard.source} failed"
            ) from error


def _invalid(what: str) -> InvalidRequestError:
    return InvalidRequestError(what, param="extra_args")
