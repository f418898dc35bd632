"""Wrong doorkeepers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from tokenmill.core.contract.client import Load
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import Refusal
from tokenmill.testing.conformance.policies import admission as suite

from . import fails


class Admission:
    """A doorkeeper that is one function. Right: it accepts all requests."""

    @hookimpl
    def admit(self, request: Any, load: Load) -> Any:
        return self.answer(request, load)

    def answer(self, request: Any, load: Load) -> Any:
        return None


@fails(suite.check_it_never_raises)
class Raises(Admission):
    def answer(self, request: Any, load: Load) -> Any:
        share = request.num_prompt_tokens / load.num_running  # raises if no request runs
        return Refusal(reason="too long") if share > 100 else None


@fails(suite.check_it_answers_none_or_a_refusal)
class AnswersYes(Admission):
    def answer(self, request: Any, load: Load) -> Any:
        return load.num_waiting < 100


@fails(suite.check_refusals_say_why_and_for_how_long)
class RefusesWithoutAReason(Admission):
    def answer(self, request: Any, load: Load) -> Any:
        return Refusal(reason=" ") if load.is_draining else None


@fails(suite.check_refusals_say_why_and_for_how_long)
class RefusesForEver(Admission):
    def answer(self, request: Any, load: Load) -> Any:
        return Refusal(reason="no", retry_after=float("inf"))


class AsksFirst(Admission):
    """It asks another machine before it admits a request. Right: it does not need to."""

    @hookimpl
    def before_admit(self, arrival: Any) -> Any:
        return self.prepare(arrival)

    def prepare(self, arrival: Any) -> Any:
        return None


@fails(suite.check_before_admit_never_fails)
class AnswersYesBefore(AsksFirst):
    def prepare(self, arrival: Any) -> Any:
        return arrival.n == 1


@fails(suite.check_before_admit_never_fails)
class RaisesBefore(AsksFirst):
    def prepare(self, arrival: Any) -> Any:
        return None if arrival.max_tokens < 10 else 1 / (arrival.n - 1)


@fails(suite.check_before_admit_never_fails)
class RaisesWhileItWaits(AsksFirst):
    def prepare(self, arrival: Any) -> Coroutine[None, None, None]:
        return self.ask(arrival)

    async def ask(self, arrival: Any) -> None:
        raise ConnectionError("the other machine is away")
