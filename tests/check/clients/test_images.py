"""Unchanged clients send images, and get the answers of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.oracle.tiny_smolvlm import make_reference, picture, png, write_model

from ...server_process import running_server
from .conftest import PROMPT, Target
from .environments import run_python
from .test_clients import python

NUM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Photo:
    """A server whose model reads images, and a photo."""

    target: Target
    """The answer to the photo with PROMPT after it."""
    path: Path
    text_after_prompt: str
    """The answer to PROMPT with the photo after it."""

    @property
    def arguments(self) -> tuple[str, ...]:
        return *self.target.arguments, str(self.path)


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Photo]:
    folder, image = tmp_path_factory.mktemp("vision"), picture(1, 60, 50)
    model, path = write_model(folder / "model"), folder / "photo.png"
    path.write_bytes(png(image))
    reference, tokenizer = make_reference(model), AutoTokenizer.from_pretrained(model)

    def answer(*parts: dict[str, str]) -> str:
        messages = [{"role": "user", "content": parts}]
        _, token_ids = reference.answer(messages, [image], NUM_TOKENS)
        text: str = tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    shown, prompt = {"type": "image"}, {"type": "text", "text": PROMPT}
    flags = ("--model", str(model), "--served-model-name", "tiny", "--dtype", "float32")
    with running_server(folder, *flags, "--strict-fields") as server:
        target = Target(server.url, "tiny", answer(shown, prompt))
        yield Photo(target, path, answer(prompt, shown))


def test_openai(photo: Photo) -> None:
    found = run_python(python(), "use_openai.py", *photo.arguments)
    assert set(found.values()) == {photo.target.text}


def test_anthropic(photo: Photo) -> None:
    found = run_python(python(), "use_anthropic.py", *photo.arguments)
    text = photo.target.text
    assert found == {"whole": text, "streamed": text, "is_counted": True}


def test_langchain(photo: Photo) -> None:
    found = run_python(python(), "use_langchain.py", *photo.arguments)
    assert found.pop("usage") == NUM_TOKENS
    assert found == dict.fromkeys(("whole", "streamed", "responses"), photo.target.text)


def test_llm_with_an_attachment(photo: Photo) -> None:
    """`llm` sends the attachment after the prompt."""
    found = run_python(python(), "use_llm.py", *photo.arguments)
    assert found == dict.fromkeys(("whole", "streamed"), photo.text_after_prompt)
