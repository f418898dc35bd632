"""The engine's tokenizer, built on the `tokenizers` library; it encodes chats, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from ...core.errors import InvalidRequestError
from ...core.interfaces import ChatFormat, ChatMessage, Detokenizer
from .chat.given_template import GivenTemplate
from .chat.messages import check_documents, check_messages, texts_of
from .chat.template import ChatTemplate
from .chat.template_variables import check_template_kwargs
from .control_tokens import ControlTokens, encode
from .detokenizer import ByteDetokenizer, WindowDetokenizer
from .token_table import build_token_table


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The texts of tokens with a role; None if the model lacks the token."""

    bos: str | None = None
    eos: str | None = None
    unk: str | None = None
    pad: str | None = None

    def completed_by(self, other: SpecialTokens) -> SpecialTokens:
        """Return these tokens, and the other's for roles that these lack."""
        names = (field.name for field in fields(self))
        return SpecialTokens(
            **{name: getattr(self, name) or getattr(other, name) for name in names}
        )

    def as_variables(self) -> dict[str, str]:
        """Return the existing tokens by their names in chat templates, such as "bos_token"."""
        pairs = ((f"{field.name}_token", getattr(self, field.name)) for field in fields(self))
        return {name: text for name, text in pairs if text is not None}


class HFTokenizer:
    """Implements core's `Tokenizer`; it never changes after construction, so it is thread-safe.

    It owns `backend`, and switches off its truncation and padding. `source` names the model in
    errors. Raises ConfigError when the chat template is not valid Jinja, and when the decoder or a
    control token is not supported.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: SpecialTokens | None = None,
        chat_template: str | GivenTemplate | None = None,
        source: str = "tokenizer",
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = special_tokens or SpecialTokens()
        self._backend = backend
        self._table = build_token_table(backend, source)
        self.max_chars_per_token = self._table.max_chars_per_token
        variables = self.special_tokens.as_variables()
        if isinstance(chat_template, str):
            chat_template = GivenTemplate(text=chat_template, name=source)
        self._template = (
            ChatTemplate(chat_template.text, variables, chat_template.name)
            if chat_template is not None
            else None
        )
        template_text = self._template.literal_text if self._template else ""
        self._control = ControlTokens(
            backend,
            template_text=template_text,
            unk=self.special_tokens.unk,
            source=source,
            image_text=self._template.image_text if self._template else ("", ""),
        )

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return len(self._table.token_bytes)

    @property
    def all_token_bytes(self) -> tuple[bytes, ...]:
        """The bytes of every token, by id."""
        return self._table.token_bytes

    @property
    def special_ids(self) -> frozenset[int]:
        """The tokens that `skip_special_tokens` leaves out."""
        return self._table.special_ids

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def chat_format(self) -> ChatFormat | None:
        return self._template.format if self._template is not None else None

    @property
    def special_token_texts(self) -> Mapping[str, str]:
        return self.special_tokens.as_variables()

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Encode a text. With `parse_special` False, text like "<|im_end|>" stays plain text.

        Raises InvalidRequestError for text that is not valid Unicode.
        """
        _check_unicode(text, "prompt")
        if not parse_special:
            return self._control.encode_plain(text, add_special_tokens=add_special_tokens)
        return encode(self._backend, text, add_special_tokens=add_special_tokens)

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, str]] = (),
    ) -> list[int]:
        """Encode a chat with the model's template; the token ids are the same as transformers'.

        `template_kwargs` are checked against an allow-list. Text in a message never becomes a
        control token (see ControlTokens). Raises InvalidRequestError for an invalid chat, and if
        both flags are set.
        """
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        check_documents(documents, is_shown=self._template.format.shows_documents)
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "continue_final_message cannot be used with add_generation_prompt",
                param="continue_final_message",
            )
        checked = check_messages(
            messages,
            known_roles=self._template.string_constants,
            takes_tool_calls=self._template.takes_tool_calls,
            form=self._template.form,
            result_form=self._template.result_form,
        )
        texts = list(texts_of(checked))
        _check_unicode("".join(texts), "messages")
        variables = check_template_kwargs(template_kwargs, self._template.format.variables)
        for param, given in (
            ("tools", list(tools)),
            ("documents", list(documents)),
            ("chat_template_kwargs", variables),
        ):
            added = list(texts_of(given))
            _check_unicode("".join(added), param)
            texts += added
        marks = self._control.marks_for(texts)
        rendered = self._template.render(
            [self._control.mark(message, marks) for message in checked],
            add_generation_prompt=add_generation_prompt,
            continuation_mark=marks.end_of_message if continue_final_message else None,
            template_kwargs=self._control.mark_fields(variables, marks),
            tools=[self._control.mark_fields(tool, marks) for tool in tools],
            documents=[self._control.mark_values(document, marks) for document in documents],
        )
        return self._control.encode_marked(rendered, marks)

    def frame_images(self, text: str) -> str:
        """See FRAME_IMAGES in core/members. `encode_chat` does it itself."""
        return self._control.frame_images(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode tokens; bytes that are not UTF-8 become U+FFFD, and unknown ids are skipped."""
        visible = self._table.visible(token_ids, skip_special_tokens=skip_special_tokens)
        if not self._table.joins_bytes:
            return self._backend.decode(visible, skip_special_tokens=False)
        pieces = [self._table.token_bytes[index] for index in visible]
        if self._table.strips_first and pieces and pieces[0].startswith(b" "):
            pieces[0] = self._backend.decode(visible[:1], skip_special_tokens=False).encode()
        return b"".join(pieces).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for an unknown id."""
        known = 0 <= token_id < len(self._table.token_bytes)
        return self._table.token_bytes[token_id] if known else b""

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """Make a new incremental detokenizer of generated tokens."""
        if self._table.joins_bytes:
            return ByteDetokenizer(self._table, skip_special_tokens=skip_special_tokens)
        return WindowDetokenizer(
            self._backend, self._table, skip_special_tokens=skip_special_tokens
        )

    def save(self, path: Path) -> None:
        """Write it as a tokenizer.json, without the chat template."""
        self._backend.save(str(path))


def _check_unicode(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{param} has half of a surrogate pair at character {error.start}, which is not text",
            param=param,
        ) from None
