"""A draft head in one native call computes what the same head computes product by product."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenmill.backends.cpu.draft_head_call import make_draft_head_call
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.drafting.head_runner import TorchHead
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import EmbeddingTable, TorchLinear
from tokenmill.backends.models.draft_head import DraftHead
from tokenmill.backends.models.draft_head_files import DraftHeadFiles
from tokenmill.backends.weights.packed import WeightFormat

from ..tiny import CPU
from ..tiny_checkpoints import TARGET, write_head

SIZE = TARGET.hidden_size
SPEC = LinearSpec(dtype=torch.bfloat16, device=CPU)
LARGEST_ERROR = {False: 0.04, True: 0.06}
"""By whether weights have 8 bits: largest error as a fraction of the results' standard deviation.

One call rounds a state twice to bfloat16, products one by one three times. The largest results are
four deviations, and half a unit in their last place is 2^-8 of them: 0.016 per rounding. Thirty
heads had at most 0.031. With 8 bits, an input that was rounded to the other side can also become
another int8; there, logits had at most 0.033, and may move by one such step more.
"""


@pytest.fixture
def files(tmp_path: Path) -> DraftHeadFiles:
    return DraftHeadFiles(write_head(tmp_path / "head", TARGET, 3, inner=64))


class Dequantizing(CPULinear):
    """Keeps no packed weights."""

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return False


def load(files: DraftHeadFiles, *, keeps_packed: bool) -> DraftHead:
    return files.load(CPULinear(SPEC) if keeps_packed else Dequantizing(SPEC), SPEC)


def inputs(num_rows: int) -> tuple[torch.Tensor, torch.Tensor, EmbeddingTable]:
    """State, tokens, and an embedding."""
    noise = torch.Generator().manual_seed(num_rows)
    state_re = 3 * torch.randn(num_rows, SIZE, generator=noise).bfloat16()
    token_ids_r = torch.randint(TARGET.vocab_size, (num_rows,), generator=noise)
    embedding_ve = torch.randn(TARGET.vocab_size, SIZE, generator=noise).bfloat16()
    return state_re, token_ids_r, EmbeddingTable(embedding_ve)


@pytest.mark.parametrize("keeps_packed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 33])
def test_it_is_near_the_head_product_by_product(
    num_rows: int, keeps_packed: bool, files: DraftHeadFiles, library: Library
) -> None:
    state_re, token_ids_r, embedding = inputs(num_rows)
    head = load(files, keeps_packed=keeps_packed)
    call = make_draft_head_call(head, embedding)
    assert call is not None
    one_by_one = TorchHead(head, embedding)
    for tokens_r in (token_ids_r, token_ids_r.flip(0)):  # the second goes on from the first
        right_re, right_rd = one_by_one.step(state_re, tokens_r)
        found_re, found_rd = call.step(state_re.clone(), tokens_r)
        for found, right in ((found_re, right_re), (found_rd, right_rd)):
            assert found.shape == right.shape and found.dtype is right.dtype
            bound = LARGEST_ERROR[keeps_packed] * right.float().std()
            assert (found - right).abs().max() < bound
        state_re = right_re


def test_fewer_rows_go_on_where_they_are(files: DraftHeadFiles, library: Library) -> None:
    state_re, token_ids_r, embedding = inputs(5)
    call = make_draft_head_call(load(files, keeps_packed=False), embedding)
    assert call is not None
    state_re, _ = call.step(state_re, token_ids_r)
    alone_re, alone_rd = call.step(state_re[:2].clone(), token_ids_r[:2])
    rest_re = state_re[2:].clone()
    found_re, found_rd = call.step(state_re[:2], token_ids_r[:2])
    assert torch.equal(found_re, alone_re) and torch.equal(found_rd, alone_rd)
    assert torch.equal(state_re[2:], rest_re)


def test_rows_of_packed_weights_are_those_of_a_table(
    files: DraftHeadFiles, library: Library
) -> None:
    state_re, token_ids_r, embedding = inputs(5)
    products = CPULinear(SPEC)
    packed = products.embedding(products.head(embedding.weight_ve))
    head = load(files, keeps_packed=True)
    results = []
    for one in (embedding, packed):
        call = make_draft_head_call(head, one)
        assert call is not None
        results.append(call.step(state_re.clone(), token_ids_r))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_eight_bits_are_near_sixteen(files: DraftHeadFiles, library: Library) -> None:
    state_re, token_ids_r, embedding = inputs(7)
    logits = []
    for keeps_packed in (False, True):
        head = load(files, keeps_packed=keeps_packed)
        logits.append(TorchHead(head, embedding).step(state_re, token_ids_r)[1])
    assert 0 < (logits[0] - logits[1]).abs().max() < 0.1 * logits[0].std()


def test_there_is_none_for_products_of_torch_s(files: DraftHeadFiles) -> None:
    head = files.load(TorchLinear(SPEC), SPEC)
    assert make_draft_head_call(head, inputs(1)[2]) is None
