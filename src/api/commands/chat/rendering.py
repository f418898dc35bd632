"""Makes text fit for a terminal: removes control characters, wraps lines, renders Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

TAB = " " * 4
_CONTROL: dict[int, str | None] = {
    code: None for code in (*range(32), 127, *range(128, 160)) if chr(code) != "\n"
} | {ord("\t"): TAB}
_PLAIN_TOKENS = {"paragraph_open", "paragraph_close", "inline", "text", "softbreak"}


def printable(text: str) -> str:
    """The text without characters that a terminal could take as orders."""
    return text.translate(_CONTROL)


class WordWrap:
    """Breaks lines between words while the text comes, and counts the rows that it takes.

    The last column stays free: where the cursor is after it depends on the terminal.
    """

    def __init__(self, width: int) -> None:
        self.num_rows = 1
        self._width = max(2, width - 1)
        self._column = 0
        self._word = ""
        """The word at the cursor, as far as it may move to the next row."""

    def add(self, text: str) -> str:
        """The characters to print for more text; they may move a word that was printed before."""
        return "".join(map(self._place, text))

    def _place(self, character: str) -> str:
        from rich.cells import cell_len

        width = cell_len(character)
        if character == "\n" or (character == " " and self._column == self._width):
            self._begin_row("")
            return "\n"
        if self._column + width > self._width:
            return self._move_word(cell_len(self._word)) + self._place(character)
        self._column += width
        # A line may break after a space and next to a wide character, as in Chinese.
        self._word = "" if character == " " or width == 2 else self._word + character
        return character

    def _move_word(self, width: int) -> str:
        if width in (0, self._column):
            self._begin_row("")
            return "\n"
        word = self._word
        self._begin_row(word, width)
        return f"\x1b[{width}D\x1b[K\n{word}"

    def _begin_row(self, word: str, width: int = 0) -> None:
        self.num_rows += 1
        self._word, self._column = word, width


def last_blocks(text: str, width: int, max_rows: int) -> tuple[str, int]:
    """The end of a Markdown text that takes at most `max_rows` rows of a terminal, from the
    beginning of a paragraph, list or other block on; and the number of its rows.

    Empty if the last block takes more.
    """
    lines = text.split("\n")
    for token in _parser().parse(text):
        if token.level == 0 and token.map is not None:
            end = "\n".join(lines[token.map[0] :])
            wrap = WordWrap(width)
            wrap.add(end)
            if wrap.num_rows <= max_rows:
                return end, wrap.num_rows
    return "", 0


def render_markdown(text: str, width: int) -> str | None:
    """The text as Markdown with codes for colours; None if it has no markup.

    Its line ends are kept: a poem is not a paragraph.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    tokens = _parser().parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    if {token.type for token in (*tokens, *inner)} <= _PLAIN_TOKENS:
        return None
    for token in inner:
        token.type = "hardbreak" if token.type == "softbreak" else token.type
    markdown = Markdown(text, hyperlinks=False, code_theme="ansi_dark")
    markdown.parsed = tokens
    console = Console(width=width, force_terminal=True)
    with console.capture() as captured:
        console.print(markdown)
    return captured.get()


def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    # HTML is text: rich would leave out "<int>" in "vector<int>" as a tag.
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
