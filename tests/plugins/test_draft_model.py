"""The speculative method draft-model: its requests to the executor, its errors without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tokenmill.core.contract.providers.speculation import Draft, DraftModel, ProposalBatch
from tokenmill.core.errors import ConfigError
from tokenmill.plugins.speculative.draft_model import DraftModelOptions, DraftModelSpeculator


class Echo:
    """A draft model that drafts the number of requests in the batch."""

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        return [Draft(token_ids=(len(batch.requests),)) for _ in batch.requests]


class Support:
    vocab_size = 10
    num_speculative_tokens = 3

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def load_draft_model(self, path: Path) -> DraftModel:
        self.paths.append(path)
        return Echo()


def test_it_loads_the_model_that_it_is_told_and_lets_it_propose() -> None:
    support = Support()
    speculator = DraftModelSpeculator(DraftModelOptions(model="some/where"))
    speculator.prepare(support)
    assert support.paths == [Path("some/where")]
    assert list(speculator.propose(ProposalBatch(requests=()))) == []


def test_without_a_model_it_says_how_to_get_one() -> None:
    with pytest.raises(ConfigError, match=r"--speculative-model PATH.*tokenmill draft make"):
        DraftModelSpeculator(DraftModelOptions()).prepare(Support())
