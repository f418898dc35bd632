"""What every engine is given."""

from __future__ import annotations

from workloads import mixed, uniform


def test_mixed_has_the_sizes_that_the_documentation_names() -> None:
    requests = mixed()

    assert len(requests) == 32
    assert sum(len(request.prompt_token_ids) for request in requests) == 7802
    assert sum(request.max_tokens for request in requests) == 3994


def test_prompts_are_the_same_for_every_engine_and_all_begin_differently() -> None:
    requests = uniform(32, 128, 5, seed=3)

    assert requests == uniform(32, 128, 5, seed=3)
    assert len({request.prompt_token_ids[0] for request in requests}) > 30
    assert {len(request.prompt_token_ids) for request in requests} == {128}
    assert {request.max_tokens for request in requests} == {5}


def test_another_seed_gives_other_prompts() -> None:
    assert uniform(1, 128, 1, seed=0) != uniform(1, 128, 1, seed=1)
