"""Runs a model along a run of its reference, and compares each attention with that run.

Every layer attends with the reference's numbers, and passes on the reference's result. So errors do
not add up from layer to layer, and rounding does not choose other experts in later layers.

Shape suffixes: t tokens, r rows that get logits, e hidden size, h query heads, k KV heads, d head
size, v vocabulary.
"""

from __future__ import annotations

import math

import torch

from ...models.base import Attend, AttentionRecord, Model, ReferenceRun


class FollowedModel:
    """A Model that computes the tokens of a reference's run, in the same order."""

    def __init__(self, model: Model, run: ReferenceRun) -> None:
        self._model = model
        self._run = run
        self.config, self.embedding = model.config, model.embedding
        self.num_parameters, self.num_bytes = model.num_parameters, model.num_bytes
        self.error = 0.0
        """The largest error of any token: in the arguments or the result of a call of attention, or
        in compared logits, relative to their size. Infinity if other layers attend, or if a number
        is not finite."""

    def forward(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        records = iter(self._run.attention)

        def follow(
            layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
        ) -> torch.Tensor:
            record = next(records, None)
            if record is None or not _is_of(record, layer, q_thd, k_tkd, v_tkd):
                self.error = math.inf
                return attend(layer, q_thd, k_tkd, v_tkd)
            self._compare(q_thd, record.q_thd)
            self._compare(k_tkd, record.k_tkd)
            self._compare(v_tkd, record.v_tkd)
            self._compare(attend(layer, record.q_thd, record.k_tkd, record.v_tkd), record.out_thd)
            return record.out_thd

        return self._model.forward(
            token_ids_t, positions_t, follow if self._run.attention else attend
        )

    def compute_logits(self, hidden_re: torch.Tensor) -> torch.Tensor:
        return self._model.compute_logits(hidden_re)

    def compare_logits(self, own_rv: torch.Tensor, rows: slice) -> None:
        """Compare the logits of these tokens, relative to the spread of those of the reference."""
        expected_rv = self._run.logits_tv[rows]
        mean_r1 = expected_rv.mean(dim=1, keepdim=True)
        self._compare(own_rv - mean_r1, expected_rv - mean_r1)

    def _compare(self, own: torch.Tensor, expected: torch.Tensor) -> None:
        own_tx, expected_tx = own.flatten(1).float(), expected.flatten(1).float()
        sizes_t = expected_tx.norm(dim=1).clamp(min=1e-6)
        error = float(((own_tx - expected_tx).norm(dim=1) / sizes_t).max())
        self.error = max(self.error, error if math.isfinite(error) else math.inf)


def _is_of(
    record: AttentionRecord,
    layer: int,
    q_thd: torch.Tensor,
    k_tkd: torch.Tensor,
    v_tkd: torch.Tensor,
) -> bool:
    shapes = (record.q_thd.shape, record.k_tkd.shape, record.v_tkd.shape)
    return record.layer == layer and shapes == (q_thd.shape, k_tkd.shape, v_tkd.shape)
