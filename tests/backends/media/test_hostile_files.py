"""Files that are made to harm: mutations, bombs, and huge attachments."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import psutil
import pytest
from PIL import Image

from tokenmill.backends.media.messages import ProcessorStart
from tokenmill.backends.media.reader import ImageReader
from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.requests.media_prompt import ReadImage

from .image_files import CONFIG, files, saved
from .readers import read, reader_of

START = ProcessorStart(
    plugin="a plugin",
    factory="tokenmill.backends.media.idefics3.plugin:make_idefics3",
    options={},
    options_type=None,
    config=CONFIG,
    kwargs={},
    max_pixels=32_000_000,
)
NUMBERS = (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff")
WORDS_OF_LIBRARIES = ("0x", "<_io", "PIL", "/", "Error", "truncated", "broken")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageReader]:
    reader = reader_of(START, tmp_path_factory.mktemp("tokenizer"), cache_bytes=0)
    yield reader
    reader.close()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A file with flipped bits, other numbers, a missing end, or repeated parts."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed))
        if rng.random() < 0.6:  # where the headers are
            at = rng.randrange(min(len(changed), 64))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at : at + 4] = rng.choice(
                (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff")
            )
        elif kind == 2:
            changed[at:at] = changed[at : at + rng.randrange(1, 200)]
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 20)]
        else:
            changed[at] = rng.randrange(256)
        changed = changed or bytearray(b"\0")
    return bytes(changed)


def with_right_sums(data: bytes) -> bytes:
    """A PNG file whose chunks have the right check sums, so that they are read."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        body = data[at + 4 : at + 8 + length]
        out += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return bytes(out)


def check_mutations(reader: ImageReader, number: int, seed: int) -> int:
    """Read mutated files, some at the same time. Return how many became images."""
    rng = random.Random(seed)
    sound = [file.data for file in files(46)]
    num_read = 0
    for _ in range(number // 10):
        broken = [mutated(rng.choice(sound), rng) for _ in range(9)]
        broken = [with_right_sums(one) if one[:4] == b"\x89PNG" else one for one in broken]
        *found, neighbour = read(reader, *broken, sound[12])
        assert isinstance(neighbour, ReadImage)
        for one in found:
            assert isinstance(one, ReadImage | InvalidRequestError), repr(one)
            if isinstance(one, InvalidRequestError):
                assert not [word for word in WORDS_OF_LIBRARIES if word in str(one)], str(one)
        num_read += sum(isinstance(one, ReadImage) for one in found)
    return num_read


def test_mutated_files_are_read_or_refused_and_harm_no_other(reader: ImageReader) -> None:
    num_read = check_mutations(reader, 300, seed=0)
    assert 20 < num_read < 250, "the mutations do too little, or too much"


@pytest.mark.soak
def test_20000_mutated_files_harm_nothing_and_no_memory_is_lost(reader: ImageReader) -> None:
    check_mutations(reader, 1000, seed=1)
    before = psutil.Process().memory_info().rss
    for seed in range(2, 22):
        check_mutations(reader, 950, seed=seed)
    assert psutil.Process().memory_info().rss < before + (64 << 20)


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_with(*chunks: bytes) -> bytes:
    """A small PNG file with more chunks after its header."""
    data = saved(Image.new("RGB", (4, 4), (1, 2, 3)), "PNG")
    return data[:33] + b"".join(chunks) + data[33:]


def webp_header(width: int, height: int) -> bytes:
    """The beginning of a WebP file whose canvas has this size."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + size + bytes(100)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif_of(num_frames: int) -> bytes:
    file = BytesIO()
    frames = [Image.new("L", (8, 8), i % 256) for i in range(256)]
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=1)
    data = file.getvalue()
    start = data.index(b"\x21\xf9", 13)
    body = data[start:-1]
    return data[:start] + body * (num_frames // 256) + b"\x3b"


def jpeg_with_segments(number: int) -> bytes:
    """A JPEG file with many application segments, each of the greatest length."""
    data = saved(Image.new("RGB", (8, 8)), "JPEG")
    segment = b"\xff\xe1" + struct.pack(">H", 65535) + b"Exif\0\0" + b"\xff" * 65527
    return data[:2] + segment * number + data[2:]


def black_png(side: int) -> bytes:
    """A whole PNG file with a square of black pixels of one bit. Pillow would need a byte for each
    of them to write it."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    pixels = zlib.compress(bytes(side * (1 + (side + 7) // 8)), 1)
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


BOMBS: dict[str, Callable[[], bytes]] = {
    "30,000 x 30,000 pixels of one bit": lambda: black_png(30_000),
    "a WebP canvas of 268 million pixels": lambda: webp_header(1 << 14, 1 << 14),
    "a WebP canvas of 60 million pixels": lambda: webp_header(10_000, 6_000),
    "a GIF frame larger than its screen": lambda: (
        b"GIF89a\1\0\1\0\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\0;"
    ),
}
"""Made by the tests: at import, every process of `make test` would make all of them."""


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_by_their_header(reader: ImageReader, bomb: str) -> None:
    reader._process._end_child()  # another one has a peak of its own
    [refusal] = read(reader, BOMBS[bomb]())
    assert isinstance(refusal, InvalidRequestError)
    assert "pixels" in str(refusal) or "damaged" in str(refusal)
    assert peak_of(reader) < 256 << 20


HUGE: dict[str, Callable[[], bytes]] = {
    "text that is 100 MB when unpacked": lambda: png_with(
        chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(100 << 20), 9))
    ),
    "a color profile that is 100 MB when unpacked": lambda: png_with(
        chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(100 << 20), 9))
    ),
    "EXIF data of 8 MB": lambda: png_with(
        chunk(b"eXIf", b"MM\0*\0\0\0\x08\xff\xff" + b"\xff" * (8 << 20))
    ),
    "XMP data of 8 MB": lambda: png_with(
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b'tiff:Orientation="' * (8 << 16))
    ),
    "many EXIF segments": lambda: jpeg_with_segments(100),
}


@pytest.mark.parametrize("what", HUGE)
def test_huge_attachments_are_refused_or_ignored(reader: ImageReader, what: str) -> None:
    reader._process._end_child()  # another one has a peak of its own
    [found] = read(reader, HUGE[what]())
    assert isinstance(found, ReadImage | InvalidRequestError)
    assert peak_of(reader) < 512 << 20


def test_only_the_first_of_10000_frames_is_decoded(reader: ImageReader) -> None:
    [found] = read(reader, gif_of(10_240))
    assert isinstance(found, ReadImage)
    assert found.items[0].pixels == bytes(64 * 64 * 3)


def test_the_memory_of_a_large_image_is_given_back(reader: ImageReader) -> None:
    [small] = read(reader, saved(Image.new("RGB", (8, 8)), "PNG"))
    before = process_of(reader).memory_info().rss
    [large] = read(reader, saved(Image.new("RGBA", (5000, 4000)), "PNG"))
    assert isinstance(small, ReadImage) and isinstance(large, ReadImage)
    assert process_of(reader).memory_info().rss < before + (32 << 20)


def process_of(reader: ImageReader) -> psutil.Process:
    child = reader._process._child
    assert child is not None, "the process has ended"
    return psutil.Process(child.pid)


def peak_of(reader: ImageReader) -> int:
    """The largest memory that the process has had."""
    pid = process_of(reader).pid
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in one]
    return int(line.split()[1]) << 10
