"""plugins.toml: the packaged defaults, a user's differences, and what is wrong in a file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.core.host.plugins_file import packaged_file, read_plugins_file, read_settings
from tokenmill.core.kinds import SLOTS

pytestmark = pytest.mark.usefixtures("own_folder")

ROOT = Path(__file__).resolve().parents[3]


def settings_of(text: str, folder: Path) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_the_packaged_file_fills_every_slot() -> None:
    settings = read_plugins_file(packaged_file())
    assert {slot: settings.slots[slot].use for slot in SLOTS} == {
        "scheduler": "chunked",
        "scheduling_policy": "fcfs",
        "preemption_mode": "recompute",
        "distributed_executor_backend": "auto",
        "attention_backend": "auto",
        "linear_backend": "auto",
        "model_impl": "auto",
        "grammar_backend": "auto",
        "speculative_method": "none",
        "draft_length": "adaptive",
        "tool_call_parser": "auto",
        "reasoning_parser": "auto",
        "media_processor": "auto",
        "router": "prefix-aware",
    }
    assert settings.strict is True


def test_the_packaged_file_enables_the_engine_s_own_entry_points_except_routes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = project["entry-points"]["tokenmill.plugins"]
    assert {*read_plugins_file(packaged_file()).enable, "ollama"} == set(own)


def test_a_user_s_file_says_only_what_is_different(own_folder: Path) -> None:
    path = settings_of(
        """
        [plugins]
        enable = ["acme_sjf"]
        disable = ["stats-log"]
        strict = false
        [scheduler]
        use = "prefill-first"
        """,
        own_folder,
    )
    packaged, settings = read_settings(), read_settings(path)
    assert settings.enabled == (*(n for n in packaged.enabled if n != "stats-log"), "acme-sjf")
    assert settings.strict is False
    assert settings.slots["scheduler"].use == "prefill-first"
    assert settings.slots["scheduling_policy"] == packaged.slots["scheduling_policy"]
    assert settings.builtin == packaged.enable


def test_the_file_beside_the_process_counts_unless_another_is_named(own_folder: Path) -> None:
    (own_folder / "plugins.toml").write_text('[scheduler]\nuse = "prefill-first"\n')
    other = settings_of("", own_folder)
    assert read_settings().slots["scheduler"].use == "prefill-first"
    assert read_settings(other).slots["scheduler"].use == "chunked"


def test_options_without_a_use_belong_to_the_provider_below(own_folder: Path) -> None:
    path = settings_of("[scheduler]\nsize = 3\n[observer.stats_log]\ninterval = 1", own_folder)
    settings = read_settings(path)
    assert settings.slots["scheduler"].use == "chunked"
    assert settings.slots["scheduler"].options == {"size": 3}
    assert settings.named["observer", "stats-log"].options == {"interval": 1}
    assert settings.named["observer", "stats-log"].origin == f"{path} [observer.stats_log]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[schedular]\nuse = 'x'", "unknown table [schedular]. Did you mean 'scheduler'?"),
        ("scheduler = 'x'", "scheduler must be a table, got 'x'"),
        ("api = 2", "api = 2, but this engine supports api = 1"),
        ("[plugins]\nenabled = []", "[plugins]: unknown key 'enabled'. Did you mean 'enable'?"),
        ("[plugins]\nenable = 'x'", "[plugins] enable must be a list of names, got 'x'"),
        ("[plugins]\nstrict = 1", "[plugins] strict must be true or false, got 1"),
        (
            "[plugins]\nenable = ['a']\ndisable = ['a']",
            "[plugins] enables and disables 'a'",
        ),
        ("[scheduler]\nuse = 3", "[scheduler] use must be a name, got 3"),
        ("[observer]\nx = 3", "[observer.x] must be a table of options, got 3"),
        ("[scheduler", "Expected ']' at the end of a table declaration"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_file_s_name(
    text: str, message: str, own_folder: Path
) -> None:
    path = settings_of(text, own_folder)
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert str(caught.value).startswith(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read the plugins file missing\.toml: No such"):
        read_settings("missing.toml")


def test_a_folder_with_the_file_s_name_is_not_ignored(own_folder: Path) -> None:
    (own_folder / "plugins.toml").mkdir()
    with pytest.raises(ConfigError, match=r"cannot read the plugins file plugins.toml: Is a dir"):
        read_settings()
