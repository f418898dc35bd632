"""The names that fields have in each API, for errors and headers.

All APIs are served as completions or chat completions, whose checks know only their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ....core.errors import InvalidRequestError
from ...http.errors import APIError

_INDEX = re.compile(r"\[\d+\]")


class FieldNames:
    """An API's names, by the names of completions, chat completions or sampling parameters.

    A name may be a path of fields, with "[]" for any index. Of several that fit, the first counts.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        # A single word, such as "messages", also stands for itself. A quoted name is the client's.
        fields = [re.escape(name) for name in names if re.search(r"[_.]", name)]
        pattern = "|".join(fields).replace(r"\[\]", r"\[\d+\]")
        self._fields = re.compile(rf"(?<![\w'\"])({pattern})(?![\w'\"])") if fields else None

    def own(self, path: str) -> str:
        """The API's path of a field, or of a part of it."""
        for name, own in self._names.items():
            if path == name or path.startswith((f"{name}.", f"{name}[")):
                return own + path[len(name) :]
        return path

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Let errors for the client use the API's names."""
        try:
            yield
        except (APIError, InvalidRequestError) as error:
            if error.param is not None:
                error.param = self.own(error.param)
            text = self._text(str(error))
            error.args = (text,)
            if isinstance(error, APIError):
                error.message = text
            raise

    def _text(self, text: str) -> str:
        return self._fields.sub(self._own_match, text) if self._fields else text

    def _own_match(self, found: re.Match[str]) -> str:
        return self._names[_INDEX.sub("[]", found[1])]


CHAT = FieldNames({"prompt": "messages", "logprobs": "top_logprobs"})
EMBEDDINGS = FieldNames({"prompt": "input"})
MESSAGES = FieldNames(
    {
        "prompt": "messages",
        "chat_template_kwargs.enable_thinking": "thinking",
        "chat_template_kwargs.reasoning_effort": "output_config.effort",
        "thinking_token_budget": "thinking.budget_tokens",
        "response_format.json_schema": "output_config.format",
        "response_format": "output_config.format",
        "function.parameters": "input_schema",
        "messages[].tool_calls[].function.arguments": "messages[].content[].input",
        "stop": "stop_sequences",
        "user": "metadata.user_id",
    }
)
RESPONSES = FieldNames(
    {
        "prompt": "input",
        "messages": "input",
        "chat_template_kwargs.reasoning_effort": "reasoning.effort",
        "function.parameters": "parameters",
        "messages[].tool_calls[].function": "input[]",
        "messages[].tool_calls": "input[]",
        "logprobs": "top_logprobs",
        "max_tokens": "max_output_tokens",
        "response_format.json_schema": "text.format",
        "response_format": "text.format",
    }
)
