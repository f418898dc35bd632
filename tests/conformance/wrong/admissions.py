"""Wrong doorkeepers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.core.contract.client import Load
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import Refusal
from tokenmill.testing import AdmissionConformance


class Admission:
    """A doorkeeper that is one function."""

    def __init__(self, answer: Callable[[Any, Load], Any]) -> None:
        self._answer = answer

    @hookimpl
    def admit(self, request: Any, load: Load) -> Any:
        return self._answer(request, load)


class TestAdmitRaises(AdmissionConformance):
    fails = "test_it_never_raises"

    @pytest.fixture
    def admission(self) -> object:
        def answer(request: Any, load: Load) -> Any:
            share = request.num_prompt_tokens / load.num_running  # raises when nobody runs
            return Refusal(reason="too long") if share > 100 else None

        return Admission(answer)


class TestAdmitAnswersYes(AdmissionConformance):
    fails = "test_it_answers_none_or_a_refusal"

    @pytest.fixture
    def admission(self) -> object:
        return Admission(lambda request, load: load.num_waiting < 100)


class TestRefusesWithoutAReason(AdmissionConformance):
    fails = "test_refusals_say_why_and_for_how_long"

    @pytest.fixture
    def admission(self) -> object:
        return Admission(lambda request, load: Refusal(reason=" ") if load.is_draining else None)


class TestRefusesForEver(AdmissionConformance):
    fails = "test_refusals_say_why_and_for_how_long"

    @pytest.fixture
    def admission(self) -> object:
        return Admission(lambda request, load: Refusal(reason="no", retry_after=float("inf")))
