"""The built-in token bucket per API key, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from .serving import Served, serve_engine, toy_engine
from .test_errors import check_error

ASK: dict[str, Any] = {"prompt": "abc", "max_tokens": 2}
KEYS = ("first-key", "second-key")
SETTINGS = """
[admission.token-bucket]
requests_per_minute = 2
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    file = tmp_path / "plugins.toml"
    file.write_text(SETTINGS)
    engine = toy_engine(plugins_file=str(file))
    with serve_engine(engine, api_keys=KEYS) as running:
        yield running


def test_a_key_that_spent_its_allowance_gets_429_and_others_go_on(served: Served) -> None:
    with served.client() as http:

        def ask(key: str) -> Any:
            headers = {"Authorization": f"Bearer {key}"}
            return http.post("/v1/completions", json=ASK, headers=headers)

        assert [ask(KEYS[0]).status_code for _ in range(3)] == [200, 200, 429]
        refused = ask(KEYS[0])
        error = check_error(refused, 429)
        assert error["code"] == "rate_limit_exceeded" and error["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert ask(KEYS[1]).status_code == 200


def test_the_official_client_says_rate_limit_error(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEYS[0], max_retries=0) as client:
        for _ in range(2):
            client.completions.create(model="simulated", prompt="abc", max_tokens=1)
        with pytest.raises(openai.RateLimitError, match="2 requests per minute"):
            client.completions.create(model="simulated", prompt="abc", max_tokens=1)
