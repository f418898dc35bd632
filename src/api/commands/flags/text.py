"""Text for the model on the command line: UTF-8 in every locale."""

from __future__ import annotations

from ....core.errors import ConfigError


def utf8_text(word: str) -> str:
    """The text of an argument. In an ASCII locale, Python leaves its bytes undecoded.

    Raises ConfigError if it is not UTF-8.
    """
    try:
        return word.encode("utf-8", "surrogateescape").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"an argument is not UTF-8: {word!r:.80}") from error
