"""A model with a reference is compared with it before the engine is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.base import AttentionRecord, ReferenceRun
from tokenmill.backends.running.checking import model_check
from tokenmill.backends.running.checking.followed_model import FollowedModel
from tokenmill.backends.running.checking.model_check import check_model
from tokenmill.backends.running.parts.model_parts import ModelParts, linear_spec
from tokenmill.backends.weights.config.kv_groups import one_group
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError

from ...models.dense import compute_logits
from ...tiny import CONFIG, attention, attention_spec, decoder


class Referenced:
    """The tiny decoder, with a reference for its logits."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """`change`: makes the reference's logits differ."""
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(decoder(), name)

    def reference(self, token_ids_bn: torch.Tensor) -> ReferenceRun:
        logits = [self._change(compute_logits(decoder(), one)) for one in token_ids_bn]
        return ReferenceRun(logits_tv=torch.cat(logits))


def check(
    change: Callable[[torch.Tensor], torch.Tensor], *, load_seconds: float = 6000, **options: Any
) -> None:
    spec = attention_spec(8)
    parts = ModelParts(
        spec=spec,
        decoder=Referenced(change),
        attention=attention(8),
        linear=TorchLinear(linear_spec(spec)),
        groups=one_group(CONFIG),
    )
    check_model(parts, EngineConfig(**options), load_seconds=load_seconds)


def as_it_is(logits_tv: torch.Tensor) -> torch.Tensor:
    return logits_tv


def only_decoded(logits_tv: torch.Tensor) -> torch.Tensor:
    """A token that the prefill does not sample."""
    logits_tv[1] = logits_tv[1].flip(0)
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


@pytest.mark.parametrize("change", [only_decoded, nothing])
def test_a_model_with_other_logits_is_refused(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    with pytest.raises(ConfigError, match="does not compute what its own forward pass does"):
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
    monkeypatch.setattr(model_check, "SECONDS", 0.0)
    check(nothing, load_seconds=0)
    assert "model_check_stopped" in [one.msg for one in caplog.records]


def test_attention_is_compared_layer_by_layer() -> None:
    """The result of one layer's attention differs, and nothing else."""
    right = ReferenceRun(logits_tv=torch.zeros(2, 192), attention=run_tiny())
    model = FollowedModel(decoder(), right)
    tokens_t = torch.tensor([5, 9])
    model.forward(tokens_t, torch.arange(2), follow_itself)
    assert model.error < 1e-6
    model.forward(
        tokens_t,
        torch.arange(2),
        lambda layer, q, k, v: follow_itself(layer, q, k, v) * (1 + 0.1 * layer),
    )
    assert 0.05 < model.error < 0.2


def follow_itself(
    layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
) -> torch.Tensor:
    """Each token sees itself alone."""
    return v_tkd.repeat_interleave(q_thd.shape[1] // v_tkd.shape[1], dim=1)


def run_tiny() -> list[AttentionRecord]:
    """The calls of a forward pass."""
    records = []

    def record(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = follow_itself(layer, q, k, v)
        records.append(AttentionRecord(layer=layer, q_thd=q, k_tkd=k, v_tkd=v, out_thd=out))
        return out

    decoder().forward(torch.tensor([5, 9]), torch.arange(2), record)
    return records
