"""A model with a reference is compared with it before the engine is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.running import model_check
from tokenmill.backends.running.model_check import check_model
from tokenmill.backends.running.model_parts import ModelParts, linear_spec
from tokenmill.backends.weights.config.kv_groups import one_group
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError

from ..models.dense import compute_logits
from ..tiny import CONFIG, attention, attention_spec, decoder


class Referenced:
    """The tiny decoder, with a reference for its logits."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """`change`: makes the reference's logits differ."""
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(decoder(), name)

    def reference_logits(self, token_ids_t: torch.Tensor) -> torch.Tensor:
        return self._change(compute_logits(decoder(), token_ids_t))


def check(change: Callable[[torch.Tensor], torch.Tensor], **options: Any) -> None:
    spec = attention_spec(8)
    parts = ModelParts(
        spec=spec,
        decoder=Referenced(change),
        attention=attention(8),
        linear=TorchLinear(linear_spec(spec)),
        groups=one_group(CONFIG),
    )
    check_model(parts, EngineConfig(**options), load_seconds=0)


def as_it_is(logits_tv: torch.Tensor) -> torch.Tensor:
    return logits_tv


def only_after_the_prompt(logits_tv: torch.Tensor) -> torch.Tensor:
    """The decode differs."""
    logits_tv[-1] = logits_tv[-1].flip(0)
    return logits_tv


def nothing(logits_tv: torch.Tensor) -> torch.Tensor:
    return logits_tv * torch.nan


def fail(logits_tv: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("one\nreason")


def test_equal_logits_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tokenmill")
    check(as_it_is)
    (event,) = [vars(one) for one in caplog.records if one.msg == "model_checked"]
    assert event["error"] < 1e-4


@pytest.mark.parametrize("change", [only_after_the_prompt, nothing])
def test_a_model_with_other_logits_is_refused(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(ConfigError, match="computes other logits than its own forward pass"):
        check(change)


def test_a_model_that_cannot_run_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="fails in its first steps: one reason"):
        check(fail)


def test_the_check_can_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    check(fail, skip_model_check=True)
    (event,) = [vars(one) for one in caplog.records if one.msg == "model_check_skipped"]
    assert event["reason"] == "--skip-model-check"


def test_the_check_stops_when_it_takes_too_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_check, "_SECONDS", 0.0)
    check(fail)
    assert "model_check_stopped" in [one.msg for one in caplog.records]
