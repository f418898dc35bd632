"""Readers of images for tests, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from tokenmill.backends.media.choice import make_image_reader
from tokenmill.backends.media.messages import ProcessorStart
from tokenmill.backends.media.reader import ImageReader
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.text.tokenizer import HFTokenizer
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.choice import choose_slot
from tokenmill.core.host.plugin_set import enabled_plugins
from tokenmill.core.interfaces import MediaInfo

from .image_files import saved

WORDS = ("[UNK]", "User", ":", "compare", "and", "\n", "\n\n", " ", "(", ")")
SPECIAL = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
PLACEHOLDER = len(WORDS)
MAX_PIXELS = 1 << 20


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer.json of a few words, in which two line ends are one token, as in SmolVLM.
    Return its path."""
    tokens = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = Split(Regex(r"\n+|[ ():]|[^\s():]+"), "isolated")
    tokens.add_special_tokens(list(SPECIAL))
    path = folder / "tokenizer.json"
    tokens.save(str(path))
    return path


def tokenizer_in(folder: Path) -> HFTokenizer:
    write_tokenizer(folder)
    return load_tokenizer(folder)


def start_of(factory: str, config: Mapping[str, Any] | None = None) -> ProcessorStart:
    return ProcessorStart(
        plugin="a plugin",
        factory=factory,
        options={},
        options_type=None,
        config=config or {},
        kwargs={},
        max_pixels=MAX_PIXELS,
    )


HOSTILE = start_of("tests.backends.media.hostile:make_impatient")


def hostile_reader(folder: Path, cache_bytes: int = 1 << 20) -> ImageReader:
    return reader_of(HOSTILE, folder, cache_bytes)


def reader_of(start: ProcessorStart, folder: Path, cache_bytes: int = 1 << 20) -> ImageReader:
    tokenizer = tokenizer_in(folder)
    return ImageReader(start, tokenizer, placeholder_token_id=PLACEHOLDER, cache_bytes=cache_bytes)


def reader_for(
    folder: Path,
    config: dict[str, Any],
    *,
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> ImageReader:
    """The reader with the chosen media processor. `options` are those of EngineConfig."""
    engine_config = EngineConfig.from_options(**options)
    plugins = enabled_plugins(engine_config)
    media = MediaInfo(
        config=config,
        placeholder_token_id=PLACEHOLDER,
        bytes_per_token=1,
        cache_bytes=1,
    )
    return make_image_reader(
        plugins.registry,
        choose_slot("media_processor", engine_config, plugins),
        media,
        tokenizer_in(folder),
        kwargs=kwargs or {},
        max_pixels=MAX_PIXELS,
        cache_bytes=1 << 20,
    )


def image_of(width: int, height: int = 2) -> bytes:
    """A file with an image of this size, in a grey that differs by the size."""
    grey = (width * 7 + height) % 256
    return saved(Image.new("RGB", (width, height), (grey, grey, grey)), "PNG")


def read(reader: ImageReader, *images: bytes, salt: str = "") -> list[Any]:
    """What the reader makes of each, or its refusal, at the same time."""

    async def run() -> list[Any]:
        reads = (reader.read(data, salt) for data in images)
        return await asyncio.gather(*reads, return_exceptions=True)

    return asyncio.run(run())
