"""A seeded request's tokens depend on nothing but its prompt and parameters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tokenmill import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The weather today is", "def add(a, b):", "In the year 2050"]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    # float32: in bfloat16 the last bits of the logits depend on how many rows a matrix has
    with LLM(dtype="float32", disable_log_stats=True, kv_cache_memory=1 << 27) as found:
        yield found


def seeded(seed: int, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=1.0, top_p=0.95, seed=seed, max_tokens=max_tokens, ignore_eos=True
    )


def test_neighbours_in_the_batch_do_not_change_seeded_tokens(llm: LLM) -> None:
    params = [seeded(i, 6) for i in range(len(PROMPTS))]
    alone = [
        llm.generate(prompt, one, use_tqdm=False)[0].outputs[0].token_ids
        for prompt, one in zip(PROMPTS, params, strict=True)
    ]
    crowd = SamplingParams(temperature=1.0, max_tokens=8)
    together = llm.generate(
        ["Noise"] * 5 + PROMPTS + ["More noise"] * 5,
        [crowd] * 5 + params + [crowd] * 5,
        use_tqdm=False,
    )
    assert [o.outputs[0].token_ids for o in together[5:9]] == alone


def test_another_seed_gives_other_tokens_and_none_gives_new_ones_each_time(llm: LLM) -> None:
    unseeded = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    outputs = llm.generate(
        [PROMPTS[0]] * 4, [seeded(1, 12), seeded(2, 12), unseeded, unseeded], use_tqdm=False
    )
    assert len({o.outputs[0].token_ids for o in outputs}) == 4
