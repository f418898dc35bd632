"""The API over an engine in a process of its own answers as over one in this process.

The imported tests run here with other servers.
"""

# ruff: noqa: F401

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tokenmill.assembly import build_supervised_engine
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import no_progress

from .serving import Served, serve_engine
from .test_answers import (
    test_a_chat_may_continue_the_last_message,
    test_a_stop_string_is_named_and_shown_only_if_asked,
    test_each_choice_of_several_prompts_and_n_has_an_index_of_its_own,
    test_the_text_is_the_engine_s_with_the_prompt_before_it_if_asked,
    test_token_ids_come_if_asked,
    test_usage_runs_along_if_asked,
)
from .test_chunks import (
    test_a_chunk_has_one_choice_whatever_n_is,
    test_a_client_that_reads_the_first_choice_only_loses_nothing,
    test_chat_with_token_ids_has_the_prompt_s,
    test_no_logprobs_beyond_the_sampled_token_s_if_zero_are_asked_for,
    test_the_sampled_token_is_among_the_most_likely_ones_even_if_it_is_unlikely,
)
from .test_disconnects import (
    ENDLESS,
    test_a_client_that_leaves_before_its_body_is_complete_disturbs_nobody,
    test_a_client_that_leaves_frees_its_blocks,
    test_leaving_ends_all_prompts_of_a_list,
    test_two_hundred_clients_of_whom_many_leave_hold_nothing_in_the_end,
)
from .test_errors import (
    test_a_prompt_that_is_wrong_is_400,
    test_an_unknown_model_is_404,
    test_overflow_says_both_numbers,
)
from .toy_process import toy_process


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    with serve_engine(toy_process()) as served:
        yield served


@pytest.fixture
def http(toy: Served) -> Iterator[httpx.Client]:
    with toy.client() as client:
        yield client


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with serve_engine(
        toy_process(max_model_len=2 * ENDLESS, num_gpu_blocks_override=8192)
    ) as served:
        yield served


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    config = EngineConfig(
        enable_prefix_caching=False, num_gpu_blocks_override=128, disable_log_stats=True
    )
    engine = build_supervised_engine(config, no_progress, stall_timeout=10.0, max_restarts=5)
    with serve_engine(engine) as served:
        yield served
