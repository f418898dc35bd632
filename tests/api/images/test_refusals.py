"""Images that are refused: 400 with the place, in words that show nothing of the machine."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.api.serving import serve_engine, toy_engine
from tests.api.test_errors import check_error
from tests.oracle.tiny_smolvlm import png
from tokenmill.assembly import AsyncEngine

from .calls import MESSAGES, ONE, RESPONSES, TWO, chat, image_part, text, token_ids

FIRST = "messages[0].content[0]"
BROKEN = png(ONE)[:200]


def url(given: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": given, **fields}


def encoded(data: bytes, head: str = "data:image/png;base64,") -> str:
    return head + base64.b64encode(data).decode()


REFUSED: dict[str, dict[str, Any]] = {
    "opens no connections: send the image as a data URL": url("https://example.com/a.png"),
    "opens no connections": url("HTTP://127.0.0.1/a.png"),
    "the data of the image are not base64": url("data:image/png;base64,!!!!"),
    "not base64": url("data:image/png;base64,AAA"),
    "are not base64": url("data:image/png;base64,AA==AAAA"),
    "the image has no data": url("data:image/png;base64,"),
    "must begin with data:image/...;base64,": url("data:image/png,abc"),
    "the URL of an image must begin with": url("ftp://a/b.png"),
    "must begin with data:": url("abc"),
    "the image has no URL": url(None),
    "these bytes are not an image": url(encoded(b"hello")),
    "the image's format is SVG": url(encoded(b"<svg></svg>")),
    "the image is damaged": url(encoded(BROKEN)),
    "too many pixels: at most 100000": url(encoded(png(Image.new("RGB", (400, 300))))),
    "no image with this uuid is known": url(None, uuid="unknown"),
    "of type 'input_audio' is not supported": {"type": "input_audio", "input_audio": {}},
    "of type 'video_url' is not supported": {"type": "video_url", "video_url": {"url": "x"}},
    "of type 'image_embeds' is not": {"type": "image_embeds", "image_embeds": "AAAA"},
}


@pytest.mark.parametrize("why", REFUSED)
def test_the_place_and_the_cause_are_named(http: httpx.Client, why: str) -> None:
    error = check_error(chat(http, REFUSED[why]), 400, FIRST)
    assert why in error["message"] and FIRST in error["message"]
    assert not re.search(r"0x[0-9a-f]{6}|\.py\b|BytesIO|PIL|/tmp", error["message"])


def test_the_second_image_of_the_second_message_is_named(http: httpx.Client) -> None:
    turns = [
        {"role": "user", "content": [image_part(ONE)]},
        {"role": "user", "content": [image_part(ONE), text("and"), url(encoded(b"hello"))]},
    ]
    check_error(chat(http, messages=turns), 400, "messages[1].content[2]")


def test_more_images_than_the_limit_are_refused(http: httpx.Client) -> None:
    parts = [image_part(ONE)] * 4
    error = check_error(chat(http, *parts), 400, "messages[0].content[3]")
    assert error["message"] == "at most 3 images per prompt (--limit-mm-per-prompt), got 4"


def test_the_other_apis_name_their_own_places(http: httpx.Client) -> None:
    part = {"type": "input_image", "image_url": "https://example.com/a.png"}
    given = {"input": [{"role": "user", "content": [part]}]}
    check_error(http.post(RESPONSES, json=given), 400, "input[0].content[0]")
    given["input"][0]["content"][0] = {"type": "input_image", "file_id": "f"}
    error = check_error(http.post(RESPONSES, json=given), 400, "input[0].content[0].file_id")
    assert "stores no files" in error["message"]
    for source, words in (
        ({"type": "url", "url": "https://example.com/a.png"}, "opens no connections"),
        ({"type": "file", "file_id": "f"}, "use the type 'base64'"),
        ({"type": "base64", "data": "!"}, "messages[0].content[0]: the data of the image are not"),
    ):
        blocks = [{"type": "image", "source": source}]
        body = {"model": "tiny", "messages": [{"role": "user", "content": blocks}]}
        answer = http.post(MESSAGES, json=body | {"max_tokens": 1})
        assert answer.status_code == 400
        assert words in answer.json()["error"]["message"]


def test_a_bad_image_harms_no_other_request(http: httpx.Client) -> None:
    whole = token_ids(chat(http, image_part(ONE)))
    for _ in range(3):
        assert chat(http, url(encoded(BROKEN))).status_code == 400
    assert token_ids(chat(http, image_part(ONE))) == whole


class TestNames:
    def test_an_image_that_was_named_need_not_be_sent_again(self, http: httpx.Client) -> None:
        whole = chat(http, image_part(ONE, uuid="cat"), text("?"))
        named = chat(http, url(None, uuid="cat"), text("?"))
        assert token_ids(named) == token_ids(whole)
        also = chat(http, {"type": "image_url", "image_url": {}, "uuid": "cat"}, text("?"))
        assert token_ids(also) == token_ids(whole)

    def test_another_key_does_not_find_it(
        self, http: httpx.Client, other_key: httpx.Client
    ) -> None:
        assert chat(http, image_part(ONE, uuid="mine")).status_code == 200
        error = check_error(chat(other_key, url(None, uuid="mine")), 400, FIRST)
        assert "no image with this uuid" in error["message"]
        theirs = token_ids(chat(other_key, image_part(TWO, uuid="mine")))
        assert token_ids(chat(other_key, url(None, uuid="mine"))) == theirs
        assert token_ids(chat(http, url(None, uuid="mine"))) != theirs

    def test_another_cache_salt_does_not_find_it(self, http: httpx.Client) -> None:
        assert chat(http, image_part(ONE, uuid="s"), cache_salt="a").status_code == 200
        assert chat(http, url(None, uuid="s"), cache_salt="a").status_code == 200
        check_error(chat(http, url(None, uuid="s"), cache_salt="b"), 400, FIRST)

    def test_data_count_more_than_a_name(self, http: httpx.Client) -> None:
        one = token_ids(chat(http, image_part(ONE, uuid="x")))
        two = token_ids(chat(http, image_part(TWO, uuid="x")))
        assert one != two == token_ids(chat(http, url(None, uuid="x")))


class TestFiles:
    def test_a_regular_file_below_the_folder_is_read(
        self, http: httpx.Client, allowed: Path
    ) -> None:
        (allowed / "a folder").mkdir(exist_ok=True)
        (allowed / "a folder" / "cat.png").write_bytes(png(ONE))
        found = chat(http, url((allowed / "a folder" / "cat.png").as_uri()))
        assert token_ids(found) == token_ids(chat(http, image_part(ONE)))

    @pytest.fixture
    def outside(self, allowed: Path, tmp_path: Path) -> Iterator[list[str]]:
        """URLs that name something else than a regular file below the folder."""
        secret = tmp_path / "secret.png"
        secret.write_bytes(png(ONE))
        (allowed / "link.png").symlink_to(secret)
        (allowed / "linked").symlink_to(tmp_path)
        os.mkfifo(allowed / "pipe.png")
        yield [
            secret.as_uri(),
            (tmp_path / "missing.png").as_uri(),
            (allowed / "missing.png").as_uri(),
            (allowed / "link.png").as_uri(),
            (allowed / "linked" / "secret.png").as_uri(),
            (allowed / "pipe.png").as_uri(),
            allowed.as_uri(),
            f"{allowed.as_uri()}/../{tmp_path.name}/secret.png",
            f"{allowed.as_uri()}/%2e%2e/{tmp_path.name}/secret.png",
            f"file://elsewhere{secret}",
            "file:///%00",
            "file:secret.png",
        ]
        for name in ("link.png", "linked", "pipe.png"):
            (allowed / name).unlink()

    def test_nothing_else_is_read_or_told_apart(
        self, http: httpx.Client, outside: list[str]
    ) -> None:
        answers = [check_error(chat(http, url(one)), 400, FIRST) for one in outside]
        assert {answer["message"] for answer in answers} == {
            f"{FIRST}: the URL names no regular file below --allowed-local-media-path"
        }


def test_a_model_of_text_refuses_images() -> None:
    with serve_engine(toy_engine()) as served, served.client() as http:
        error = check_error(chat(http, image_part(ONE), return_token_ids=None), 400, FIRST)
        assert "reads only text" in error["message"]
        error = check_error(chat(http, url("file:///etc/passwd")), 400, FIRST)
        assert "reads only text" in error["message"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"language_model_only": True}, "reads only text (--language-model-only)"),
        ({"limit_mm_per_prompt": {"image": 0}}, "at most 0 images per prompt"),
    ],
    ids=str,
)
def test_images_can_be_switched_off(folder: Path, options: dict[str, Any], words: str) -> None:
    """Then the encoder is not loaded."""
    engine = AsyncEngine(
        str(folder), dtype="float32", num_gpu_blocks_override=64, disable_log_stats=True, **options
    )
    with serve_engine(engine) as served, served.client() as http:
        assert served.engine.info.media is None
        assert words in check_error(chat(http, image_part(ONE)), 400, FIRST)["message"]
        assert token_ids(chat(http, text("Hi")))


def test_files_are_refused_without_a_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(png(ONE))
    engine = AsyncEngine(str(folder), num_gpu_blocks_override=64, disable_log_stats=True)
    with serve_engine(engine) as served, served.client() as http:
        refused = check_error(chat(http, url((tmp_path / "cat.png").as_uri())), 400, FIRST)
        assert refused["message"] == (
            f"{FIRST}: file URLs are not allowed (--allowed-local-media-path)"
        )
