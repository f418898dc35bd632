"""The whole engine on a random model: its tokens are those of transformers, whatever computes
attention, schedules, preempts or caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from ..oracle import toy
from ..oracle.comparison import check_what_took_place, find_near_ties
from ..oracle.reference import ReferenceCase, gap
from ..oracle.settings import Setting
from .contenders import skip_without_device
from .engine import CHECKPOINT, MOST_REGRET, SETTINGS, largest_regret, serve

skip_without_device()

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def model() -> Any:
    return toy.make_reference(CHECKPOINT)


@pytest.fixture(scope="module")
def cases(model: Any) -> list[ReferenceCase]:
    return toy.make_cases(model)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_tokens_are_those_of_transformers(
    backend_name: str, setting: Setting, model: Any, cases: list[ReferenceCase]
) -> None:
    served, chosen = serve(backend_name, setting, cases, torch.float32)
    find_near_ties(partial(gap, model), chosen, served.token_ids)
    check_what_took_place(setting, served)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("setting", SETTINGS[::5], ids=str)
def test_tokens_in_half_precision_are_nearly_the_best(
    backend_name: str,
    setting: Setting,
    dtype: torch.dtype,
    model: Any,
    cases: list[ReferenceCase],
    record_property: Record,
) -> None:
    served, chosen = serve(backend_name, setting, cases, dtype)
    regret = largest_regret(model, chosen, served.token_ids)
    record_property("max_regret", regret)
    assert regret < MOST_REGRET
    check_what_took_place(setting, served)
