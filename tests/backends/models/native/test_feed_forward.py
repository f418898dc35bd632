"""Experts: each token is computed by the experts that its router chose, and by no other."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenmill.backends.linear.torch import Linear
from tokenmill.backends.models.native.feed_forward import Experts, GatedNetwork
from tokenmill.backends.weights.config.model_config import ExpertsConfig

CONFIG = ExpertsConfig(num_experts=5, num_active=2, intermediate_size=8, normalizes_shares=True)


@dataclass
class Scaled:
    """Multiplies by a number; keeps its inputs."""

    factor: float

    def __post_init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    num_parameters = num_bytes = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        return x * self.factor


def make(config: ExpertsConfig) -> tuple[Experts, list[Scaled]]:
    """Expert i multiplies by i; the router's numbers are the first inputs."""
    networks = [Scaled(float(index)) for index in range(config.num_experts)]
    router = Linear(torch.eye(config.num_experts, 8))
    experts = Experts(
        config=config,
        router=router,
        networks=[GatedNetwork(Scaled(1.0), network) for network in networks],
    )
    return experts, networks


def test_a_token_is_computed_by_its_experts_only_in_one_product_per_expert() -> None:
    experts, networks = make(CONFIG)
    x_te = torch.zeros(3, 8)
    x_te[0, [1, 4]] = 2.0
    x_te[1, [4, 0]] = 2.0
    x_te[2, [1, 4]] = 2.0
    out_te = experts(x_te)
    torch.testing.assert_close(out_te, x_te * torch.tensor([[2.5], [2.0], [2.5]]))
    assert [[len(x) for x in network.seen] for network in networks] == [[1], [2], [], [], [3]]


def test_shares_are_probabilities_and_their_sum_is_one_only_if_they_are_normalized() -> None:
    experts, _ = make(CONFIG)
    others, _ = make(ExpertsConfig(**{**_fields(CONFIG), "normalizes_shares": False}))
    x_te = torch.randn(7, 8, generator=torch.Generator().manual_seed(0))
    indices_ta, shares_ta = experts.route(x_te)
    probabilities_tx = x_te[:, :5].softmax(-1)
    torch.testing.assert_close(shares_ta.sum(-1), torch.ones(7))
    assert torch.equal(others.route(x_te)[0], indices_ta)
    torch.testing.assert_close(others.route(x_te)[1], probabilities_tx.gather(1, indices_ta))


def _fields(config: ExpertsConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in ExpertsConfig.__slots__}
