"""Renders a model's chat template in the same Jinja environment as transformers.

Templates come with the model, never from a request, but run in a sandbox anyway, which bounds their
time and memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import ext, meta, nodes
from jinja2.parser import Parser

from ....core.errors import ConfigError, InvalidRequestError
from ....core.interfaces import ChatFormat
from .budget import Budget, TooMuchWork, current_budget
from .messages import ContentForm
from .sandbox import BoundedEnvironment
from .tool_calls import with_text_arguments

MAX_RENDERED_CHARS = 8 * 1024 * 1024
"""Bounds the memory of a rendering: a template may write much more than its input."""
_MAX_SOURCE_CHARS = 128 * 1024
"""Known templates have at most 20,000 characters."""
_WIDE_DATE = re.compile(r"%[^a-zA-Z%]*\d|.{200}", re.DOTALL)
"""A date format whose result may be much longer than those of known templates."""

_TO_ESCAPE = re.compile("[^\0-\x7f\U000f0000-\U000ffffd]")
"""Characters that JSON in ASCII escapes, without the marks around control tokens."""


_CALL_ID = "probe0000"
_CALL: Mapping[str, Any] = {
    "tool_calls": [
        {"id": _CALL_ID, "type": "function", "function": {"name": "probe", "arguments": {}}}
    ]
}
"""A tool call. Its id has the length that some templates require."""


class _Refusal(jinja2.TemplateError):
    """The template called raise_exception; the message is meant for the sender of the request."""


class ChatTemplate:
    """A compiled chat template. `variables` are the special tokens, such as "bos_token".

    `name` is the model's name, for errors. Raises ConfigError when `source` is not valid Jinja, or
    when it is too long or too deeply nested.
    """

    def __init__(self, source: str, variables: Mapping[str, str], name: str) -> None:
        if len(source) > _MAX_SOURCE_CHARS:
            raise ConfigError(
                f"the chat template of {name} has {len(source)} characters, more than "
                f"{_MAX_SOURCE_CHARS}"
            )
        environment = _environment()
        with _invalid_templates_named(name):
            tree = environment.parse(source)
            constants = [node.value for node in tree.find_all(nodes.Const)]
            texts = [node.data for node in tree.find_all(nodes.TemplateData)]
            self._template = environment.from_string(tree)
        self.format = ChatFormat(source=source, variables=frozenset(_variables(tree)))
        attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
        self.takes_tool_calls = "tool_calls" in attributes.union(constants)
        """Whether the template shows the tool calls of an assistant's message."""
        self._variables = dict(variables)
        self.string_constants = frozenset(text for text in constants if isinstance(text, str))
        """Every string in the template's code, such as the roles that it knows."""
        self.literal_text = "\0".join([*texts, *sorted(self.string_constants)])
        """All text that the template itself can write, separated by NUL."""
        self.form = ContentForm()
        self.form, self.image_text = self._probe("user")
        self.result_form = self._probe("tool")[0] if self.form.shows_images else self.form

    def _probe(self, role: str) -> tuple[ContentForm, tuple[str, str]]:
        """The contents of a role's messages that the template shows; a rendering of an image, and
        the same without it.

        Templates of models that read images loop over the parts of a content. Some of them show
        nothing if the content is a text.
        """
        if "image" not in self.string_constants:
            return ContentForm(), ("", "")
        before, after = ({"type": "text", "text": f"probe{side}probe"} for side in "<>")
        texts, image = [before["text"], after["text"]], {"type": "image"}
        without = self._try([before, after], role)
        shown = self._try([before, image, after], role)
        shows_parts = all(text in without for text in texts)
        if any(dump(image) in shown for dump in (repr, json.dumps)):  # it writes whatever it gets
            return ContentForm(), ("", "")
        form = ContentForm(
            shows_images=shows_parts and all(text in shown for text in texts) and shown != without,
            needs_parts=shows_parts and texts[0] not in self._try(texts[0], role),
        )
        return form, ((shown, without) if form.shows_images else ("", ""))

    def _try(self, content: Any, role: str) -> str:
        """The rendering of a message of the user, or of the result of a tool that was called;
        nothing if the template cannot render it."""
        chat: list[dict[str, Any]] = [{"role": role, "content": content}]
        if role == "tool":
            user = {"role": "user", "content": self.form.empty}
            chat = [user, {"role": "assistant", "content": self.form.empty, **_CALL}, *chat]
            chat[-1] |= {"name": "probe", "tool_call_id": _CALL_ID}
        with suppress(InvalidRequestError):
            return self._render(chat, False, {"tools": None, "documents": None})
        return ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continuation_mark: str | None,
        template_kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Render the chat as one text. A content of None becomes an empty text, which all templates
        can handle.

        With a `continuation_mark`, a character that occurs nowhere else, the text ends where the
        last message's content ends. Raises InvalidRequestError.
        """
        chat = [
            {**message, "content": message["content"] or self.form.empty} for message in messages
        ]
        given = {
            "tools": list(tools) or None,
            "documents": list(documents) or None,
            **template_kwargs,
        }
        if continuation_mark is None:
            return self._render(chat, add_generation_prompt, given)
        text, chat[-1]["content"] = _marked_end(messages[-1]["content"], continuation_mark)
        rendered = self._render(chat, False, given)
        return _cut(rendered, text, continuation_mark)

    def _render(
        self, chat: list[dict[str, Any]], add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        variables = {**self._variables, **kwargs}
        variables |= {"messages": chat, "add_generation_prompt": add_generation_prompt}
        others = (*(kwargs["tools"] or ()), *(kwargs["documents"] or ()))
        token = current_budget.set(Budget([*chat, *others]))
        try:
            try:
                return _join_bounded(self._template.generate(variables))
            except TypeError:
                texts = with_text_arguments(chat)
                if texts == chat:
                    raise
                return _join_bounded(self._template.generate({**variables, "messages": texts}))
        except _Refusal as error:
            raise _invalid(f"the model's chat template refuses these messages: {error}") from error
        except TooMuchWork as error:
            raise _invalid(f"the model's chat template was stopped: {error}") from error
        except InvalidRequestError:
            raise
        except Exception as error:  # a bug in the template can raise anything
            kind = type(error).__name__
            raise _invalid(
                f"the model's chat template cannot render these messages ({kind})"
            ) from error
        finally:
            current_budget.reset(token)


@contextmanager
def _invalid_templates_named(name: str) -> Iterator[None]:
    try:
        yield
    except jinja2.TemplateSyntaxError as error:
        problem = f"line {error.lineno}: {error}"
        raise ConfigError(f"the chat template of {name} is not valid, {problem}") from error
    except Exception as error:  # usually Python's own limits on nesting
        raise ConfigError(
            f"the chat template of {name} cannot be compiled ({type(error).__name__})"
        ) from error


def _variables(tree: nodes.Template) -> set[str]:
    """Names that the template reads, even if it sets them when they are undefined."""
    tests = tree.find_all(nodes.Test)
    tested = {test.node.name for test in tests if isinstance(test.node, nodes.Name)}
    return meta.find_undeclared_variables(tree) | tested


def _join_bounded(pieces: Iterable[str]) -> str:
    """Join the pieces of a rendering. Raises InvalidRequestError if it is too long."""
    texts, length = [], 0
    for piece in pieces:
        texts.append(piece)
        length += len(piece)
        if length > MAX_RENDERED_CHARS:
            raise _invalid(
                f"messages have more than {MAX_RENDERED_CHARS} characters in the chat template"
            )
    return "".join(texts)


def _marked_end(content: Any, mark: str) -> tuple[str, Any]:
    """The last text of a content, and the content with a mark after it."""
    if isinstance(content, str):
        return content, f"{content}{mark} "
    if content and (text := content[-1].get("text")) is not None:
        return text, [*content[:-1], {**content[-1], "text": f"{text}{mark} "}]
    raise InvalidRequestError(
        "the last message has no content that ends with text, so it cannot be continued",
        param="continue_final_message",
    )


def _cut(rendered: str, content: str, mark: str) -> str:
    """Cut a rendering at the mark. As in transformers, trim it if the template trims contents."""
    place = rendered.rfind(mark)
    if place < 0 or content.strip() not in rendered:
        raise InvalidRequestError(
            "the model's chat template changes the last message, so it cannot be continued",
            param="continue_final_message",
        )
    is_untrimmed = rendered[place + 1 : place + 2] == " "
    return rendered[:place] if is_untrimmed else rendered[:place].rstrip()


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="messages")


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment([_Generation, ext.loopcontrols])
    environment.add_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(ext.Extension):
    """Accepts `{% generation %}`, which marks the model's own text, and ignores it."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own name and type

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(
            parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line
        )


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without escaping HTML characters, which Jinja's own filter does."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _TO_ESCAPE.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(layout: str) -> str:
    if _WIDE_DATE.search(layout):
        raise TooMuchWork("it writes too long a date")
    return datetime.now().strftime(layout)
