"""Values of the engine's configuration that are taken, and those that are refused."""

from __future__ import annotations

import pytest

from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError


@pytest.mark.parametrize("name", ["auto", "fp8", "fp8_e4m3", "fp8_e5m2"])
def test_every_name_of_a_kv_cache_dtype_is_taken(name: str) -> None:
    assert EngineConfig(kv_cache_dtype=name).kv_cache_dtype == name


def test_another_kv_cache_dtype_is_refused_with_a_near_one() -> None:
    message = "--kv-cache-dtype must be one of auto, fp8, .*got 'fp8_e4m2'.*Did you mean"
    with pytest.raises(ConfigError, match=message):
        EngineConfig(kv_cache_dtype="fp8_e4m2")


@pytest.mark.parametrize("name", ["kv_cache_memory", "max_num_seqs", "max_model_len"])
def test_a_text_where_a_number_belongs_is_refused(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(ConfigError, match=f"{flag} must be a number, got '64M'"):
        EngineConfig.from_options(**{name: "64M"})


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_queued_reqs", "block_size", "dtype"])
def test_none_is_the_default_of_an_option_and_no_value_of_a_setting(name: str) -> None:
    assert EngineConfig.from_options(**{name: None}) == EngineConfig()
    with pytest.raises(ConfigError, match=r"must be .*got None"):
        EngineConfig(**{name: None})


def test_an_empty_model_is_not_the_default_one() -> None:
    with pytest.raises(ConfigError, match="--model is empty"):
        EngineConfig(model="")
