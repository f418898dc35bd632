"""Images as requests give them become bytes of files, or a refusal with their place."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.requests import given_images
from tokenmill.core.requests.given_images import GivenImage, image_bytes, take_images

PLACE = "messages[0].content[0]"


def bytes_of(source: object, folder: str | None = None) -> bytes:
    return image_bytes(GivenImage(source=source, place=PLACE), folder)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 3 * 64, 1000])
def test_base64_is_decoded_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_images, "_PIECE", 8)
    data = bytes(n % 251 for n in range(size))
    text = base64.b64encode(data).decode()
    assert bytes_of(f"data:image/png;base64,{text}") == data
    assert bytes_of(f"DATA:;BASE64,{text}") == data


@pytest.mark.parametrize("text", ["AAAAAA==AAAA", "AAAA====", "A", "AAAAA", "AA AA", "AA\nAA", "é"])
def test_other_text_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_images, "_PIECE", 8)
    with pytest.raises(InvalidRequestError, match="not base64") as caught:
        bytes_of(f"data:image/png;base64,{text}")
    assert caught.value.param == PLACE


def test_bytes_stay_as_they_are() -> None:
    for given in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert bytes_of(given) == b"abc"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "HSV", "YCbCr"])
def test_an_image_of_pillow_keeps_its_pixels(mode: str) -> None:
    image = Image.effect_noise((7, 5), 90).convert("RGB").convert(mode)
    found = Image.open(BytesIO(bytes_of(image)))
    assert found.convert("RGBA").tobytes() == image.convert("RGB").convert("RGBA").tobytes() or (
        found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    )


def test_an_image_of_pillow_is_turned_as_its_exif_data_says() -> None:
    image, file = Image.effect_noise((7, 5), 90), BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(file, "PNG", exif=exif)
    found = Image.open(BytesIO(bytes_of(Image.open(file))))
    assert found.size == (5, 7)
    assert found.tobytes() == image.transpose(Image.Transpose.ROTATE_270).tobytes()


def test_other_objects_are_refused() -> None:
    for given in (7, [1], object()):
        with pytest.raises(InvalidRequestError, match="is a data URL, bytes or an image of Pillow"):
            bytes_of(given)


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_images, "MAX_FILE_BYTES", 10)
    (tmp_path / "a.png").write_bytes(b"0123456789")
    (tmp_path / "b.png").write_bytes(b"0123456789a")
    assert bytes_of((tmp_path / "a.png").as_uri(), str(tmp_path)) == b"0123456789"
    with pytest.raises(InvalidRequestError, match="larger than 10 bytes"):
        bytes_of((tmp_path / "b.png").as_uri(), str(tmp_path))


def test_a_link_below_the_folder_may_lead_to_a_file_below_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.png").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert bytes_of((tmp_path / "link" / "a.png").as_uri(), str(tmp_path)) == b"abc"


def test_images_leave_messages_in_order() -> None:
    parts: list[Any] = [
        {"type": "image", "image": b"a"},
        {"type": "text", "text": "b"},
        {"type": "image_pil", "image_pil": b"c"},
        {"type": "image_url", "image_url": {"url": "d"}},
        {"type": "image_url", "image_url": "e"},
    ]
    messages: list[Any] = [{"role": "system", "content": "x"}, {"role": "user", "content": parts}]
    shown, images = take_images(messages)
    assert shown[0] == messages[0]
    kinds = [part.get("text") or part["image"] for part in shown[1]["content"]]
    assert kinds == [0, "b", 1, 2, 3]
    assert [image.source for image in images] == [b"a", b"c", "d", "e"]
    assert images[2].place == "messages[1].content[3]"
    assert parts[0] == {"type": "image", "image": b"a"}
