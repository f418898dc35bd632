"""`--vary`: which combinations it makes, and what it refuses."""

from __future__ import annotations

import pytest

from tokenmill.api.commands.simulate.vary import vary
from tokenmill.core.errors import ConfigError


def test_several_make_all_combinations_and_the_last_changes_fastest() -> None:
    assert vary(["scheduler=chunked,prefill-first", "max-num-seqs=4,8"], {}) == [
        {"scheduler": "chunked", "max_num_seqs": 4},
        {"scheduler": "chunked", "max_num_seqs": 8},
        {"scheduler": "prefill-first", "max_num_seqs": 4},
        {"scheduler": "prefill-first", "max_num_seqs": 8},
    ]


def test_without_any_there_is_one_combination() -> None:
    assert vary([], {}) == [{}]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("--swap-space=0.5,none", [0.5, None]),
        ("enable_prefix_caching=on,off", [True, False]),
        ("enable-prefix-caching=true,false", [True, False]),
        ("kv_cache_memory=1G,512M", [1 << 30, 1 << 29]),
        ("plugins_file=a.toml", ["a.toml"]),
        ("max_num_batched_tokens=128, 256", [128, 256]),
    ],
)
def test_values_are_read_as_their_field_wants_them(text: str, values: list[object]) -> None:
    assert [next(iter(settings.values())) for settings in vary([text], {})] == values


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["schedular=chunked"], "Did you mean 'scheduler'"),
        (["dtype=float32"], "not a setting of the engine that can be varied"),
        (["block_size=8,many"], "'many' is not a value for block_size"),
        (["kv_cache_memory=big"], "'big'"),
        (["scheduler"], "A,B,C"),
        (["scheduler=a,,b"], "A,B,C"),
        (["scheduler=a,a"], "A,B,C"),
        (["scheduler=a", "scheduler=b"], "varied twice"),
        (["max_num_seqs=4"], "--max-num-seqs is also given"),
    ],
)
def test_what_cannot_be_varied_is_said(texts: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        vary(texts, {"max_num_seqs": 8}, leave_out=("dtype",))
