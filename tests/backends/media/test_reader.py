"""Images are read in a process of their own, which a bad one may end, and known ones are kept."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import Idefics3Processor, PreTrainedTokenizerFast

from tokenmill.backends.media import reader as reader_module
from tokenmill.backends.media.reader import ImageReader
from tokenmill.core.errors import InvalidRequestError, OverloadedError, RequestFailedError
from tokenmill.core.log import event_fields
from tokenmill.core.requests.media_prompt import ReadImage, place_images

from . import hostile
from .image_files import CONFIG, noise, saved
from .oracle import CLASSES
from .readers import (
    MAX_PIXELS,
    PLACEHOLDER,
    hostile_reader,
    image_of,
    read,
    reader_of,
    start_of,
    tokenizer_in,
    write_tokenizer,
)

IDEFICS3 = "tokenmill.backends.media.idefics3.plugin:make_idefics3"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageReader]:
    reader = hostile_reader(tmp_path_factory.mktemp("tokenizer"))
    yield reader
    reader.close()


def pid_of(reader: ImageReader) -> int | None:
    child = reader._process._child
    return None if child is None else child.pid


def test_an_image_becomes_tokens_and_items(reader: ImageReader) -> None:
    [found] = read(reader, image_of(5, 3))
    assert [found.token_ids[0], *found.token_ids[1:4]][1:] == [PLACEHOLDER] * 3
    assert len(found.token_ids) == 5
    [item] = found.items
    assert (item.start, item.num_tokens, item.cost, item.shape) == (1, 3, 5, (3, 5, 3))
    assert item.pixels == bytes([38]) * 45
    assert reader.find(found.digest) is found


@pytest.mark.parametrize(
    ("width", "why"),
    [
        (hostile.SPINS, "could not be decoded within"),
        (hostile.EATS, "needs more than .* MiB"),
        (hostile.CRASHES, "could not be decoded$"),
        (hostile.KILLED, "could not be decoded$"),
        (hostile.REFUSED, "the image is ugly"),
    ],
)
def test_a_harmful_image_is_refused_and_its_neighbours_are_read(
    reader: ImageReader, width: int, why: str
) -> None:
    neighbours = [image_of(3, width + i) for i in range(2)]
    first, refusal, second = read(reader, neighbours[0], image_of(width), neighbours[1])
    assert [one.items[0].shape[0] for one in (first, second)] == [width, width + 1]
    with pytest.raises(InvalidRequestError, match=why):
        raise refusal


@pytest.mark.parametrize("width", [hostile.FAILS, hostile.ANSWERS_WRONG, hostile.WRITES_WRONG])
def test_a_bug_of_the_processor_is_no_fault_of_the_image(
    reader: ImageReader, width: int, caplog: pytest.LogCaptureFixture
) -> None:
    [failure] = read(reader, image_of(width))
    assert isinstance(failure, RequestFailedError)
    assert "0x" not in str(failure)
    assert {"media_processor_failed", "wrong_media_places"} & {one.msg for one in caplog.records}


def test_a_processor_that_cannot_be_made_is_no_fault_of_the_image(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(start_of("tests.backends.media.hostile:make_broken"), tmp_path)
    [failure] = read(reader, image_of(1))
    reader.close()
    assert isinstance(failure, RequestFailedError)
    assert "path" not in str(failure)
    [record] = caplog.records
    assert "at /some/path" in str(event_fields(record)["reason"])


def test_a_process_that_was_killed_between_images_is_started_again(reader: ImageReader) -> None:
    read(reader, image_of(9, 1))
    child = reader._process._child
    assert child is not None
    child.send_kill()
    assert child.wait(60)
    [found] = read(reader, image_of(9, 2))
    assert isinstance(found, ReadImage)
    assert pid_of(reader) != child.pid


def test_requests_with_the_same_image_share_the_work(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader._work, "_max_count", 1)
    found = read(reader, *[image_of(8, 1)] * 20)
    assert {id(one) for one in found} == {id(found[0])}


def test_a_known_image_is_not_processed_again(reader: ImageReader) -> None:
    data = image_of(10, 1)
    [first] = read(reader, data)
    reader._process._end_child()
    [again] = read(reader, data)
    assert again is first
    assert pid_of(reader) is None


def test_an_image_is_known_only_under_its_salt(reader: ImageReader) -> None:
    data = image_of(11, 2)
    [first], [second] = read(reader, data), read(reader, data, salt="key")
    assert first.digest != second.digest
    assert first.items[0].digest != second.items[0].digest
    assert first.items[0].pixels == second.items[0].pixels


def test_without_a_cache_every_image_is_processed(tmp_path: Path) -> None:
    reader = hostile_reader(tmp_path, cache_bytes=0)
    [first], [again] = read(reader, image_of(4)), read(reader, image_of(4))
    assert first == again
    assert first is not again
    assert reader.find(first.digest) is None
    reader.close()


def test_the_cache_forgets_the_images_that_were_not_used_for_longest(tmp_path: Path) -> None:
    reader = hostile_reader(tmp_path, cache_bytes=3 * 60)
    large = [image_of(10, 1 + i) for i in range(3)]  # of 30, 60 and 90 bytes
    first, second, third = (read(reader, data)[0] for data in large)
    assert reader.find(first.digest) is first
    [too_large] = read(reader, image_of(100, 1))
    assert reader.find(too_large.digest) is None
    assert [reader.find(one.digest) for one in (first, second, third)] == [first, second, third]
    [new] = read(reader, image_of(11, 1))
    assert reader.find(first.digest) is None
    assert reader.find(new.digest) is new
    reader.close()


def test_too_many_images_are_refused_until_there_is_room(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader._work, "_max_count", 4)
    images = [image_of(12, 1 + i) for i in range(6)]
    found = read(reader, *images)
    assert [type(one) for one in found] == [ReadImage] * 4 + [OverloadedError] * 2
    assert [type(one) for one in read(reader, *images)] == [ReadImage] * 6


def test_too_many_bytes_are_refused_but_not_one_large_image(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [image_of(13, 1 + i) for i in range(3)]
    monkeypatch.setattr(reader._work, "_max_size", len(images[0]) + len(images[1]))
    found = read(reader, *images)
    assert [type(one) for one in found] == [ReadImage, ReadImage, OverloadedError]
    monkeypatch.setattr(reader._work, "_max_size", 1)
    assert isinstance(read(reader, images[2])[0], ReadImage)


def test_a_caller_that_leaves_takes_nothing_from_the_others(reader: ImageReader) -> None:
    data = image_of(hostile.WAITS)

    async def run() -> Any:
        leaving, staying = (asyncio.create_task(reader.read(data)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert isinstance(asyncio.run(run()), ReadImage)
    assert not reader._work._open


def test_the_work_for_a_caller_that_leaves_early_is_not_done(reader: ImageReader) -> None:
    unwanted = image_of(14, 1)

    async def run() -> None:
        first = asyncio.create_task(reader.read(image_of(hostile.WAITS, 7)))
        leaving = asyncio.create_task(reader.read(unwanted))
        await asyncio.sleep(0)
        leaving.cancel()
        await first

    asyncio.run(run())
    assert not reader._work._open
    assert reader.find(reader._digest(unwanted, "")) is None


def test_a_file_that_is_too_large_is_refused(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "MAX_FILE_BYTES", 1 << 20)
    [refusal] = read(reader, bytes(1 + (1 << 20)))
    assert isinstance(refusal, InvalidRequestError)
    assert "over 1 MiB" in str(refusal)


def test_large_files_and_odd_salts_are_read(reader: ImageReader) -> None:
    large = image_of(16, 1) + bytes(1 << 20)
    [found] = read(reader, large, salt="\ud800")
    assert isinstance(found, ReadImage)


def test_the_process_of_images_is_the_first_to_die_without_memory(reader: ImageReader) -> None:
    read(reader, image_of(17, 1))
    assert Path(f"/proc/{pid_of(reader)}/oom_score_adj").read_text().strip() == "1000"


def test_after_close_no_process_is_left(tmp_path: Path) -> None:
    reader = hostile_reader(tmp_path)
    read(reader, image_of(1))
    child = reader._process._child
    assert child is not None
    reader.close()
    assert not child.is_alive


def test_without_pillow_images_are_refused(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "find_spec", lambda name: None)
    [refusal] = read(reader, image_of(15, 1))
    assert isinstance(refusal, InvalidRequestError)
    assert "pip install 'tokenmill[vision]'" in str(refusal)


def test_the_readers_own_process_imports_neither_pillow_nor_numpy_nor_torch() -> None:
    code = """
import sys
import tokenmill.backends.media.choice
from tokenmill.backends.media.idefics3.plugin import make_idefics3
make_idefics3().reasons_against({})
print({"PIL", "numpy", "torch", "transformers"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.parametrize("longest_edge", [64, 256])
def test_prompts_with_several_images_equal_those_of_transformers(
    tmp_path: Path, longest_edge: int
) -> None:
    path = write_tokenizer(tmp_path)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path), unk_token="[UNK]")
    images = [noise(np.random.default_rng(0), size) for size in ((1, 1), (300, 100), (9, 400))]
    text = "User: <image> compare <image> and\n<image>"
    config = CONFIG | {"size": {"longest_edge": longest_edge}}
    reader = reader_of(start_of(IDEFICS3, config), tmp_path)
    found = read(reader, *(saved(image, "PNG") for image in images))
    reader.close()
    prompt = place_images(tokenizer_in(tmp_path).encode(text), found, PLACEHOLDER)
    made = CLASSES["idefics3"](size=config["size"], max_image_size=config["max_image_size"])
    expected = Idefics3Processor(made, theirs, image_seq_len=4)(text=text, images=images)
    assert prompt.token_ids == expected["input_ids"][0]
    places = [at for item in prompt.items for at in range(item.start, item.end)]
    assert places == [at for at, one in enumerate(prompt.token_ids) if one == PLACEHOLDER]
    assert len({item.digest for item in prompt.items}) == len(prompt.items)


BAD: dict[str, bytes] = {
    "are not an image": b"hello",
    "not an image": b"",
    "format is TIFF": b"II*\0" + bytes(100),
    "format is AVIF": b"\0\0\0\x18ftypavif" + bytes(100),
    "is damaged": image_of(50, 50)[:60],
    f"too many pixels: at most {MAX_PIXELS}": saved(Image.new("1", (1 << 11, 1 << 10)), "PNG"),
}


@pytest.mark.parametrize("why", BAD)
def test_bytes_that_are_no_good_image_are_refused_in_our_own_words(
    reader: ImageReader, why: str
) -> None:
    [refusal] = read(reader, BAD[why])
    assert isinstance(refusal, InvalidRequestError)
    assert why in str(refusal)
