"""Two hundred prompts for the long run: those of the short one, and more made from parts."""

from __future__ import annotations

from itertools import product

from .prompts import OraclePrompt, all_prompts

_BEGINNINGS = [
    # English
    "The old lighthouse",
    "My grandmother always said that",
    "Breaking news: scientists",
    "According to the report,",
    "The three laws of robotics are",
    "Ingredients: flour, sugar,",
    "Chapter 1\n\nIt was",
    # German, French, Spanish, Italian, Portuguese, Dutch
    "Gestern Abend ging ich",
    "Der schnellste Weg nach Berlin",
    "Il était une fois",
    "La révolution française",
    "En un lugar de la Mancha,",
    "La receta de la tortilla",
    "Nel mezzo del cammin di nostra vita",
    "O Brasil é um país",
    "De kat zit op",
    # Polish, Czech, Turkish, Finnish, Vietnamese
    "Warszawa jest stolicą",
    "Praha je hlavní město",
    "İstanbul'da hava",
    "Suomen pääkaupunki on",
    "Thủ đô của Việt Nam là",
    # Russian, Ukrainian, Greek, Hindi, Thai, Japanese, Chinese, Korean, Hebrew, Arabic
    "В начале было",
    "Київ — столиця",
    "Το καλοκαίρι στην Ελλάδα",
    "भारत की राजधानी",
    "กรุงเทพมหานคร",
    "むかしむかし、あるところに",
    "人工智能的未来",
    "오늘 날씨가",
    "בראשית ברא",
    "في قديم الزمان",
    # signs
    "🌍🌎🌏 Earth facts: 1.",
    "∫₀¹ x² dx =",
    "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "A, B, C, D, E,",
    "0xDEADBEEF in decimal is",
    "→ ← ↑ ↓ are",
    "\n\n\n",
    "AAAAAAAAAAAAAAAAAAAA",
]
_CODE_HEADS = [
    "def {}(values):\n    ",
    "function {}(values) {{\n  ",
    "fn {}(values: &[i64]) -> i64 {{\n    ",
    "int {}(const int *values, int n) {{\n    ",
    "func {}(values []int) int {{\n\t",
    "-- {}\nSELECT ",
]
_NAMES = ["sum_of_squares", "find_max", "count_even", "is_sorted", "median"]
_QUESTIONS = [
    "Explain {} in one sentence.",
    "Write a limerick about {}.",
    "Was weißt du über {}? Antworte auf Deutsch.",
]
_TOPICS = [
    "gravity",
    "black tea",
    "the Roman Empire",
    "recursion",
    "whales",
    "jazz",
    "inflation",
    "glaciers",
    "chess",
    "vaccines",
]
_DOCUMENTS = [
    "You are a careful assistant of a small library. You answer in short sentences, you never "
    "guess, and you name the shelf where a book stands. Novels are on shelf A, history on shelf "
    "B, science on shelf C, and everything for children on shelf D. The library is open from nine "
    "to six.\n\n",
    "Minutes of the meeting of 3 March. Present: Anna, Bo, Chen, Dora. 1. The budget was approved. "
    "2. Bo reports that the new server is slower than the old one; Chen will measure why. "
    "3. Dora wants to move the release by a week. 4. The kitchen needs a new coffee machine.\n\n",
    "import csv\nimport sys\n\n\nclass Table:\n    def __init__(self, rows):\n"
    "        self.rows = rows\n\n    @classmethod\n    def read(cls, path):\n"
    "        with open(path) as file:\n            return cls(list(csv.reader(file)))\n\n"
    "    def column(self, index):\n        return [row[index] for row in self.rows]\n\n",
]
_TAILS = ["Q: Who", "Summary:", "In other words,", "    def ", "1.", "Therefore", "# next", "Dear"]


def many_prompts() -> list[OraclePrompt]:
    """Two hundred different prompts of 1 to 360 tokens, each followed by 48."""
    texts = [
        *_BEGINNINGS,
        *(head.format(name) for head, name in product(_CODE_HEADS, _NAMES)),
        *(document + tail for document, tail in product(_DOCUMENTS, _TAILS)),
        *(_count_up(length, step) for length, step in product((10, 25, 50, 75), (3, 7, 11))),
        *(_repeat_words(length) for length in (20, 40, 60, 90, 120)),
    ]
    chats = [question.format(topic) for question, topic in product(_QUESTIONS, _TOPICS)]
    return [
        *(OraclePrompt(prompt.text, prompt.is_chat) for prompt in all_prompts()),
        *map(OraclePrompt, texts),
        *(OraclePrompt(text, is_chat=True) for text in chats),
    ]


def _count_up(length: int, step: int) -> str:
    return ", ".join(str(number) for number in range(step, step * (length + 1), step)) + ","


def _repeat_words(length: int) -> str:
    words = ("red", "green", "blue", "seven", "tree", "stone", "cloud")
    return " ".join(words[i * i % len(words)] for i in range(length))
