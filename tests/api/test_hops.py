"""How many files of tokenmill one chat enters, from its body to its last token."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import tokenmill

from .serving import Served, serve_engine, toy_engine

MOST_FILES = 81
"""Maximum number of files. A reader who follows a chat through the code opens all of them."""

CLOCK = "api/server.py"
"""uvicorn's main loop wakes up every 0.1 s, during a chat or not."""

SRC = str(Path(tokenmill.__file__).parent.resolve())


class EnteredFiles:
    """Notes the files of tokenmill whose functions run, in threads that start later."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.is_on and event == "call":
            self.names.add(frame.f_code.co_filename)

    def of_tokenmill(self) -> list[str]:
        paths = (Path(name).resolve() for name in self.names)
        own = {str(path.relative_to(SRC)) for path in paths if path.is_relative_to(SRC)}
        return sorted(own - {CLOCK})


def chat(served: Served) -> str:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 3,
        "stream": True,
        "temperature": 0.5,
    }
    with served.client() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_chat_enters_few_files() -> None:
    entered = EnteredFiles()
    threading.setprofile(entered)
    try:
        with serve_engine(toy_engine()) as served:
            chat(served)  # what is built once is built now
            served.wait_idle()
            entered.is_on = True
            text = chat(served)
            entered.is_on = False
    finally:
        threading.setprofile(None)
    assert text.endswith("data: [DONE]\n\n")
    files = entered.of_tokenmill()
    assert "core/engine/planning.py" in files
    assert len(files) <= MOST_FILES, "\n".join(files)


def test_the_profile_sees_calls_of_other_threads() -> None:
    entered = EnteredFiles()
    threading.setprofile(entered)
    entered.is_on = True
    try:
        thread = threading.Thread(target=tokenmill.SamplingParams)
        thread.start()
        thread.join()
    finally:
        threading.setprofile(None)
    assert "core/requests/sampling_params.py" in entered.of_tokenmill()
    assert sys.getprofile() is None
