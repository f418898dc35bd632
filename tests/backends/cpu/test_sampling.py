"""Native sampling: what torch finds, for every instruction set and any number of threads."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.sampling import NativeSampling
from tokenmill.backends.running.outcome import read_outcomes
from tokenmill.backends.sampling.batch import SamplingBatch
from tokenmill.backends.sampling.drawing import draw, keep_filtered
from tokenmill.backends.sampling.filters import Filters
from tokenmill.backends.sampling.noise import Purpose, uniform
from tokenmill.backends.sampling.ops import RowsToDraw, SamplingOps, TorchSampling
from tokenmill.backends.sampling.sampler import sample
from tokenmill.backends.sampling.verification import count_accepted
from tokenmill.backends.state.request_state import RequestState
from tokenmill.core.plan import RequestStart
from tokenmill.core.requests.sampling_params import SamplingParams

CPU = torch.device("cpu")
SIZES = (1, 2, 97, 256, 1000, 5120, 49152)
FILTERS = (
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 900, "top_p": 0.5},
    {"min_p": 0.1},
    {"min_p": 0.001, "top_k": 5000, "top_p": 0.99},
    {"top_p": 1e-6},
)


def make_state(params: SamplingParams, seed: int, vocab_size: int) -> RequestState:
    start = RequestStart(
        engine_id=str(seed),
        token_ids=(0,),
        num_prompt_tokens=1,
        sampling_params=params,
        seed=seed,
        stop_token_ids=(),
    )
    return RequestState(start, 0, vocab_size)


def make_logits(num_rows: int, size: int, seed: int = 0) -> torch.Tensor:
    """From flat rows to steep ones, with a tenth of them impossible, and ties."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.01, 6, num_rows).unsqueeze(1)
    logits = scale * torch.randn(num_rows, size, generator=generator)
    logits[torch.rand(num_rows, size, generator=generator) < 0.1] = -torch.inf
    logits[:, size // 2] = 0.0
    logits[:, : size // 3] = (8 * logits[:, : size // 3]).round() / 8
    return logits


def draw_all(
    ops: SamplingOps, logits_rv: torch.Tensor, batch: SamplingBatch, positions_r: torch.Tensor
) -> list[int]:
    logits_rv = logits_rv.clone()
    token_ids_r = ops.read_logits(logits_rv).best_r
    ops.draw(
        RowsToDraw(
            logits_rv=logits_rv, batch=batch, positions_r=positions_r, token_ids_r=token_ids_r
        )
    )
    return token_ids_r.tolist()


def differences(found: list[int], expected: list[int]) -> int:
    return sum(a != b for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_a_draw_from_all_tokens_is_torchs(
    library: Library, instruction_set: str, size: int
) -> None:
    logits = make_logits(100, size)
    params = SamplingParams(temperature=0.8)
    batch = SamplingBatch([make_state(params, i, size) for i in range(100)], size, CPU)
    positions = torch.arange(7, 107)
    found = draw_all(NativeSampling(library), logits, batch, positions)
    # Where the number falls next to a boundary, weights that were rounded otherwise tell.
    assert differences(found, draw_all(TorchSampling(), logits, batch, positions)) <= 1


@functools.cache
def drawn_from_what_torch_keeps(size: int, number: int) -> list[int]:
    """The tokens of `make_logits(60, size, number)` with filters, once for all instruction sets."""
    params = SamplingParams(temperature=1.1, **FILTERS[number])
    filters = Filters(
        min_p_r1=torch.full((60, 1), params.min_p),
        top_k_r1=torch.full((60, 1), min(params.top_k, size) if params.top_k > 0 else size),
        top_p_r1=torch.full(
            (60, 1), params.top_p if params.top_p < 1 else math.inf, dtype=torch.float64
        ),
    )
    kept = keep_filtered((make_logits(60, size, number) / 1.1).softmax(dim=1), filters)
    token_ids: list[int] = draw(kept, uniform(torch.arange(60), torch.arange(60))).tolist()
    return token_ids


@pytest.mark.parametrize("number", range(len(FILTERS)))
@pytest.mark.parametrize("size", SIZES)
def test_a_draw_within_filters_is_one_from_what_torch_keeps(
    library: Library, instruction_set: str, size: int, number: int
) -> None:
    logits = make_logits(60, size, number)
    params = SamplingParams(temperature=1.1, **FILTERS[number])
    batch = SamplingBatch([make_state(params, i, size) for i in range(60)], size, CPU)
    positions = torch.arange(60)
    found = draw_all(NativeSampling(library), logits, batch, positions)
    expected = drawn_from_what_torch_keeps(size, number)
    assert differences(found, expected) <= 2


def test_rows_draw_as_they_would_alone(library: Library, restore_threads: None) -> None:
    size = 3000
    logits = make_logits(40, size)
    kinds = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_p=0.8, top_k=700)]
    states = [make_state(kinds[i % 3], i, size) for i in range(40)]
    ops, positions = NativeSampling(library), torch.arange(40)
    alone = [
        draw_all(
            ops,
            logits[i : i + 1],
            SamplingBatch([states[i]], size, CPU),
            positions[i : i + 1],
        )[0]
        for i in range(40)
    ]
    for num_threads in (1, 2, 3):
        library.set_threads(num_threads)
        batch = SamplingBatch(states, size, CPU)
        assert draw_all(ops, logits, batch, positions) == alone


def test_a_row_that_is_not_finite_draws_some_token_and_disturbs_no_other(
    library: Library, instruction_set: str
) -> None:
    size = 700
    for params in (SamplingParams(), SamplingParams(top_k=5, top_p=0.9, min_p=0.1)):
        for value in (torch.nan, torch.inf, -torch.inf):
            logits = make_logits(5, size)
            batch = SamplingBatch([make_state(params, i, size) for i in range(5)], size, CPU)
            expected = draw_all(NativeSampling(library), logits, batch, torch.arange(5))
            logits[2] = value
            found = draw_all(NativeSampling(library), logits, batch, torch.arange(5))
            assert 0 <= found.pop(2) < size
            expected.pop(2)
            assert found == expected


@pytest.mark.parametrize("params", [SamplingParams(top_k=300), SamplingParams(top_p=0.4)])
def test_weights_close_to_each_other_are_told_apart(
    library: Library, instruction_set: str, params: SamplingParams
) -> None:
    """An organ pipe within a hundredth: the worst for a selection that compares."""
    size = 20_000
    ramp = torch.arange(size // 2, dtype=torch.float32) / size / 100
    logits = torch.cat((ramp, ramp.flip(0))).expand(50, size).contiguous()
    batch = SamplingBatch([make_state(params, i, size) for i in range(50)], size, CPU)
    found = draw_all(NativeSampling(library), logits, batch, torch.arange(50))
    num_kept = params.top_k if params.top_k > 0 else params.top_p * size * 1.01
    assert all(abs(token_id - size / 2) <= num_kept / 2 + 2 for token_id in found)
    assert max(found) - min(found) > 0.8 * num_kept


def test_numbers_that_are_none_stay_within_their_row(
    library: Library, instruction_set: str
) -> None:
    """All of a NaN's bits may be set: it must not be taken for a weight."""
    size = 9000
    bits = torch.randint(0x7F800001, 0x7FFFFFFF, (3, size), dtype=torch.int32)
    logits = bits.view(torch.float32)
    for params in (SamplingParams(), SamplingParams(top_p=0.5), SamplingParams(top_k=5000)):
        batch = SamplingBatch([make_state(params, i, size) for i in range(3)], size, CPU)
        found = draw_all(NativeSampling(library), logits, batch, torch.arange(3))
        assert all(0 <= token_id < size for token_id in found)


def test_the_noise_is_that_of_torch(library: Library) -> None:
    """A row of equal logits shows the number that it is drawn with."""
    generator = torch.Generator().manual_seed(0)
    limits = torch.iinfo(torch.int64)
    seeds = torch.randint(limits.min, limits.max, (500,), generator=generator)
    seeds[:3] = torch.tensor([limits.min, limits.max, 0])
    positions = torch.randint(0, 2**40, (500,), generator=generator)
    size = 1 << 14
    states = [make_state(SamplingParams(), seed, size) for seed in seeds.tolist()]
    batch = SamplingBatch(states, size, CPU)
    found = draw_all(NativeSampling(library), torch.zeros(500, size), batch, positions)
    assert found == (uniform(seeds, positions) * size).long().tolist()


@pytest.mark.parametrize("temperature", [1e-30, 0.01, 100.0])
def test_extreme_temperatures_draw_what_they_should(
    library: Library, instruction_set: str, temperature: float
) -> None:
    logits = torch.randn(300, 500, generator=torch.Generator().manual_seed(1))
    params = SamplingParams(temperature=temperature)
    batch = SamplingBatch([make_state(params, i, 500) for i in range(300)], 500, CPU)
    found = draw_all(NativeSampling(library), logits, batch, torch.zeros(300, dtype=torch.int64))
    if temperature < 1e-3:
        assert found == logits.argmax(dim=1).tolist()
    elif temperature > 10:
        assert len(set(found)) > 150


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_p=0.9, temperature=0.7)])
@pytest.mark.parametrize("has_places", [True, False])
def test_drafts_come_with_what_they_were_drawn_from(
    library: Library, instruction_set: str, params: SamplingParams, has_places: bool
) -> None:
    size, vocab_size = 512, 2000 if has_places else 512
    places = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(3))[:size]
    seeded = params.with_changes(seed=5)
    states = [make_state(seeded if i % 3 == 2 else params, i, vocab_size) for i in range(9)]
    batch = SamplingBatch(states, size, CPU, are_drafts=True)
    logits, positions = make_logits(9, size), torch.arange(9)
    found = []
    for ops in (NativeSampling(library), TorchSampling()):
        token_ids = ops.read_logits(logits).best_r
        rows = RowsToDraw(
            logits_rv=logits.clone(), batch=batch, positions_r=positions, token_ids_r=token_ids
        )
        probs = ops.draw_drafts(rows, places if has_places else None, vocab_size)
        assert sorted(probs) == [0, 1, 3, 4, 6, 7], "seeded requests need none"
        found.append(probs)
        for row, probs_v in probs.items():
            place = places[token_ids[row]] if has_places else token_ids[row]
            assert probs_v.shape == (vocab_size,) and probs_v[place] > 0
            assert float(probs_v.double().sum()) == pytest.approx(1, abs=1e-5)
    for row, probs_v in found[0].items():
        torch.testing.assert_close(probs_v, found[1][row], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=50, temperature=0.7)])
def test_drafts_are_accepted_and_replaced_as_by_torch(
    library: Library, instruction_set: str, params: SamplingParams
) -> None:
    size = 3000
    states = [make_state(params, i, size) for i in range(60)]
    lengths = [i % 5 for i in range(60)]
    generator = torch.Generator().manual_seed(4)
    num_rows = sum(lengths) + 60
    logits = make_logits(1, size).expand(num_rows, size) * 0.5
    logits = logits + torch.randn(num_rows, size, generator=generator)
    positions = torch.arange(num_rows)
    row = 0
    for state, length in zip(states, lengths, strict=True):
        if length:
            q = (logits[row : row + length] * 0.8).softmax(dim=1)
            seeds = torch.full((length,), state.start.seed)
            drafts = draw(q, uniform(seeds, positions[row : row + length], Purpose.DRAFT))
            state.propose(drafts.tolist(), q)
        row += length + 1
    outcomes = []
    for ops in (NativeSampling(library), TorchSampling()):
        sampled = sample(logits.clone(), SamplingBatch(states, size, CPU), positions, ops)
        # The token after drafts that were all accepted is drawn; torch may draw in another order.
        outcomes.append(
            [
                outcome.token_ids[:length]
                for outcome, length in zip(read_outcomes(states, sampled), lengths, strict=True)
            ]
        )
    found, expected = outcomes
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1
    num_accepted = sum(
        count_accepted(state.draft_token_ids[: len(token_ids)], token_ids)
        for state, token_ids in zip(states, expected, strict=True)
    )
    assert 5 <= num_accepted < 0.9 * sum(lengths)


def test_sequences_with_drafts_do_not_depend_on_others_or_on_drafts_before(
    library: Library, restore_threads: None
) -> None:
    """One batch serves drafts of the same number, step after step."""
    size = 1000
    logits = make_logits(1, size).expand(30, size).contiguous()
    q = (logits[:2] * 0.5).softmax(dim=1)
    states = [make_state(SamplingParams(top_p=0.95), i, size) for i in range(10)]
    ops, positions = NativeSampling(library), torch.arange(30)

    def draft(step: int) -> None:
        for i, state in enumerate(states):
            noise = uniform(torch.tensor([100 * step + i] * 2), torch.arange(2), Purpose.DRAFT)
            state.propose(draw(q, noise).tolist(), q)

    def tokens(part: list[RequestState], batch: SamplingBatch, begin: int) -> list[list[int]]:
        rows = slice(begin, begin + 3 * len(part))
        sampled = sample(logits[rows].clone(), batch, positions[rows].clone(), ops)
        return [list(outcome.token_ids) for outcome in read_outcomes(part, sampled)]

    draft(0)
    kept = SamplingBatch(states, size, CPU)
    for step in range(4):
        draft(step)
        assert kept.holds(states)
        library.set_threads(1 + step % 3)
        together = tokens(states, kept, 0)
        alone = [
            tokens([state], SamplingBatch([state], size, CPU), 3 * i)[0]
            for i, state in enumerate(states)
        ]
        assert together == alone
