"""Callers of one hook: a decision takes the first answer, observers are all called."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import pluggy

from ...contract.plugin_info import Source
from ...errors import CONTAINED
from .failure_log import FailureLog
from .guard import FAILED, WRAPS, Guard, Later, Rule, make_guards

Check = Callable[..., str | None]
"""Called with an answer and the arguments of the hook; returns what is wrong, or None."""
_Wrapping = Generator[None, Any, Any]


class Decision:
    """Calls the implementations of a hook in pluggy's order, and knows which plugin raised.

    The first provider whose answer is not None decides. Wrappers are generators that yield once, as
    everywhere in pluggy. pluggy itself does not say which plugin raised.
    """

    def __init__(
        self,
        hook: pluggy.HookCaller,
        rule: Rule,
        sources: Mapping[str, Source],
        log: FailureLog,
        *,
        wrapper_rule: Rule = WRAPS,
        check: Check | None = None,
        later: Later | None = None,
    ) -> None:
        """`check` validates answers; `later` is for hooks on another thread, see Guard."""
        self._providers = make_guards(hook, rule, sources, log, later=later)
        self._wrappers = make_guards(hook, wrapper_rule, sources, log, wrappers=True, later=later)
        self.guards = (*self._providers, *self._wrappers)
        self._check = check
        self._author = next(iter(self.guards), None)
        self._is_out = False

    def __bool__(self) -> bool:
        return bool(self.guards)

    def ask(self, *arguments: object) -> Any:
        """The answer. FAILED if a plugin raised, the answer is invalid, or the provider is out."""
        if self._is_out:
            return FAILED
        try:
            ask = self._ask_through_wrappers if self._wrappers else self._ask_providers
            answer = ask(arguments)
        except CONTAINED as error:
            self.reject(error)
            return FAILED
        complaint = None if self._check is None else self._check(answer, *arguments)
        if complaint is None:
            return answer
        self.reject(complaint)
        return FAILED

    @property
    def author(self) -> Guard:
        """The plugin that gave the last answer, or raised instead."""
        assert self._author is not None, "no plugin was asked"
        return self._author

    def reject(self, error: BaseException | str) -> None:
        """Count a failure of the plugin that raised, or that gave a wrong answer."""
        guilty = self.author
        guilty.fail(error)
        if guilty.is_out:
            self._is_out = guilty in self._providers
            self._wrappers = tuple(wrapper for wrapper in self._wrappers if not wrapper.is_out)

    def _ask_providers(self, arguments: tuple[object, ...]) -> Any:
        for provider in self._providers:
            self._author = provider
            answer = provider.call(*arguments)
            if answer is not None:
                return answer
        return None

    def _ask_through_wrappers(self, arguments: tuple[object, ...]) -> Any:
        """Call wrappers and providers as pluggy does: an exception passes through the wrappers, and
        each of them may replace it."""
        entered: list[tuple[Guard, _Wrapping]] = []
        answer, error = None, None
        try:
            for wrapper in self._wrappers:
                self._author = wrapper
                wrapping = wrapper.call(*arguments)
                wrapper.resume(_enter, wrapping)
                entered.append((wrapper, wrapping))
            answer = self._ask_providers(arguments)
        except CONTAINED as raised:
            error = raised
        for wrapper, wrapping in reversed(entered):
            before = answer
            try:
                answer, error = wrapper.resume(_leave, wrapping, answer, error), None
            except CONTAINED as raised:
                if error is None or error not in (raised, raised.__cause__):
                    self._author = wrapper
                error = raised
            else:
                self._author = self._author if answer is before else wrapper
        if error is not None:
            raise error
        return answer


class Observers:
    """All implementations of one hook, in calling order. Each is cut off after three failures."""

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        self.guards = guards
        self._called = guards

    def __bool__(self) -> bool:
        return bool(self._called)

    def __call__(self, *arguments: object) -> list[tuple[Guard, Any]]:
        """Call all of them; returns the answers that are not None, each with its plugin's guard."""
        answers = []
        for guard in self._called:
            answer = guard(*arguments)
            if answer is FAILED:
                self._cut_off()
            elif answer is not None:
                answers.append((guard, answer))
        return answers

    def reject(self, guard: Guard, complaint: str) -> None:
        """Count a wrong answer as a failure of its plugin."""
        guard.fail(complaint)
        self._cut_off()

    def _cut_off(self) -> None:
        self._called = tuple(guard for guard in self._called if not guard.is_out)


def _enter(wrapping: _Wrapping) -> None:
    try:
        next(wrapping)
    except StopIteration:
        raise RuntimeError("the wrapper did not yield") from None


def _leave(wrapping: _Wrapping, answer: object, error: BaseException | None) -> object:
    try:
        if error is None:
            wrapping.send(answer)
        else:
            wrapping.throw(error)
    except StopIteration as end:
        return end.value
    wrapping.close()
    raise RuntimeError("the wrapper yielded twice")
