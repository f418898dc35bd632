"""The prompts of the comparison with transformers: short, long over many blocks, unicode, code."""

from __future__ import annotations

from dataclasses import dataclass

SHORT = [
    "The capital of France is",
    "Once upon a time",
    "1, 2, 3, 4,",
    "The",
    "Roses are red,",
    "In 1969, humans first",
    "To be, or not to be, that is",
    "The recipe for pancakes is simple:",
    "Q: What is the boiling point of water?\nA:",
    "My favourite colour is",
    "E = mc^2 means that",
    "Dear Sir or Madam,",
    "The quick brown fox",
    "A haiku about autumn:\n",
    "List of planets: Mercury, Venus,",
]
UNICODE = [
    "Das Wetter in München ist heute schön, aber",
    "Le café de la gare est fermé parce que",
    "El niño comió una manzana y después",
    "東京は日本の首都で、",
    "北京是中国的首都,",
    "Москва — столица России, и",
    "🎉🎂 Happy birthday! 🥳 We wish you",
    "Η Αθήνα είναι η πρωτεύουσα της",
    "naïve coöperation résumé — “quoted” … ",
    "x² + y² = z² ⇒ ∀n ∈ ℕ:",
    "안녕하세요, 저는",
    "שלום עולם, זה",
    "مرحبا بالعالم، هذا",
    "Zażółć gęślą jaźń i",
]
CODE = [
    "def fibonacci(n):\n    ",
    "import numpy as np\n\ndef softmax(x):\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "SELECT name, COUNT(*) FROM users WHERE",
    "<html>\n  <head>\n    <title>",
    "#include <stdio.h>\n\nint main(void) {\n",
    "fn main() {\n    let mut total = 0;\n",
    "const add = (a, b) =>",
    '{\n  "name": "tokenmill",\n  "version":',
    "#!/bin/bash\nset -e\nfor f in *.txt; do\n",
    "public static void main(String[] args) {\n",
    "| Name | Age |\n|------|-----|\n| Ann  | 31  |\n|",
    'git commit -m "',
    "try:\n    value = int(text)\nexcept ValueError:\n",
]
_PARAGRAPH = (
    "The river ran through the valley long before anyone thought of building a bridge across it. "
    "In spring it flooded the meadows; in summer children waded from one bank to the other. "
    "When the mill was built, the miller dug a channel, and the wheel began to turn. "
)
LONG = [
    _PARAGRAPH * repeat + tail
    for repeat, tail in [
        (1, "Years later"),
        (1, "Question: who dug the channel? Answer:"),
        (2, "The miller's daughter"),
        (3, "In the autumn of that year"),
        (5, "To sum up:"),
    ]
] + [
    "Numbers: " + ", ".join(str(i * i) for i in range(1, 20)) + ",",
    "Words: " + " ".join(f"word{i}" for i in range(30)),
    "def table():\n    return [\n" + "".join(f"        ({i}, {i * 7}),\n" for i in range(10)),
]
CHATS = [
    "What is the tallest mountain on Earth?",
    "Write a short poem about the sea.",
    "Explain what a hash table is to a child.",
    "Why is the sky blue?",
    "Write a Python function that reverses a string.",
    "Summarize: " + _PARAGRAPH,
    "Was ist die Hauptstadt von Deutschland?",
    "¿Cuántos días tiene un año bisiesto?",
    "Count from one to twenty in words.",
]
NUM_TOKENS = 48
NUM_LONG_TOKENS = 256


@dataclass(frozen=True, slots=True)
class OraclePrompt:
    """A text, whether it goes through the chat template, and how many tokens follow it."""

    text: str
    is_chat: bool = False
    num_tokens: int = NUM_TOKENS


def all_prompts() -> list[OraclePrompt]:
    """Every prompt once; every sixth one is followed by 256 tokens."""
    plain = [OraclePrompt(text) for text in SHORT + UNICODE + CODE + LONG]
    chats = [OraclePrompt(text, is_chat=True) for text in CHATS]
    return [
        OraclePrompt(p.text, p.is_chat, NUM_LONG_TOKENS if i % 6 == 2 else NUM_TOKENS)
        for i, p in enumerate(plain + chats)
    ]
