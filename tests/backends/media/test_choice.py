"""The media processor is the first that fits the model, or the one that a flag names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.plugin_packages import Packages
from tokenmill.core.errors import ConfigError, PluginError

from .image_files import CONFIG
from .readers import image_of, read, reader_for

PLUGIN = """
from dataclasses import dataclass, field
from tests.backends.media.hostile import Hostile

@dataclass
class Options:
    word: str = field(default="so", metadata={"help": "a word"})

class Other(Hostile):
    word = "none"

    @classmethod
    def reasons_against(cls, config):
        return [] if config.get("model_type") == "other" else ["it is another model"]

    def process(self, image):
        from dataclasses import replace
        done = super().process(image)
        return replace(done, text=self.word + done.text)

def make_other(options):
    Other.word = options.word
    return Other

@hookimpl
def register(registry):
    registry.offer(kinds.MEDIA_PROCESSOR, "other", make_other, options=Options)
"""


def test_auto_takes_the_processor_that_fits(tmp_path: Path) -> None:
    reader = reader_for(tmp_path, CONFIG, kwargs={"size": {"longest_edge": 64}})
    [found] = read(reader, image_of(30, 20))
    reader.close()
    assert [one.num_tokens for one in found.items] == [4]


def test_a_model_without_a_processor_is_refused_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no media processor fits .*'paligemma'"):
        reader_for(tmp_path, CONFIG | {"model_type": "paligemma"})


def test_wrong_kwargs_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'tiles'"):
        reader_for(tmp_path, CONFIG, kwargs={"tiles": 3})


def test_a_plugin_gets_its_options_in_the_process_that_decodes(
    tmp_path: Path, packages: Packages
) -> None:
    packages.install("acme-media", PLUGIN)
    path = packages.write_settings(
        "[plugins]\nenable = ['acme-media']\n[media_processor]\nuse = 'other'\nword = ' '",
        "mine.toml",
    )
    reader = reader_for(tmp_path, {"model_type": "other"}, plugins_file=path)
    [found] = read(reader, image_of(3, 2))
    reader.close()
    assert found.items[0].start == 2
    with pytest.raises(ConfigError, match="another model"):
        reader_for(tmp_path, CONFIG, plugins_file=path)


def test_a_factory_that_has_no_name_is_refused(tmp_path: Path, packages: Packages) -> None:
    nameless = PLUGIN.replace("make_other, options=Options", "lambda: Other")
    packages.install("acme-nameless", nameless)
    path = packages.write_settings("[plugins]\nenable = ['acme-nameless']", "mine.toml")
    with pytest.raises(PluginError, match="because another process imports it"):
        reader_for(tmp_path, {"model_type": "other"}, plugins_file=path)
