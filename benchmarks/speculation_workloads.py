"""Prompts for benchmarks/speculation.py, with answers that copy from the prompt, or that do not.

All texts are made from small tables, so that every run has the same texts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NAMES = ("Alice Moreau", "Bruno Keller", "Chandra Iyer", "Dmitri Volkov", "Elena Rossi", "Femi Ade")
CITIES = ("Lisbon", "Hamburg", "Nairobi", "Osaka", "Montreal", "Valparaiso")
GOODS = (
    "copper kettle",
    "reading lamp",
    "garden spade",
    "wool blanket",
    "oak shelf",
    "tin whistle",
)
STORMS = (
    "The ferry to the northern islands was cancelled because of the storm that came up at noon.",
    "Two fishing boats returned to the harbour with torn sails and no catch at all.",
    "In the lower town water stood in the cellars of the old warehouses until the evening.",
    "The fire brigade counted forty calls, most of them about fallen branches on the roads.",
    "Nobody was hurt, but the roof of the market hall will have to be mended before the winter.",
    "The mayor thanked the volunteers who had filled sandbags along the quay since the morning.",
    "School begins an hour later tomorrow, so that the buses can take the longer road inland.",
    "The weather office expects the wind to turn to the west and to calm down by Thursday.",
)
FUNCTIONS = (
    (
        "average",
        "def average(values):\n    total = 0\n    for value in values:\n        total += value\n"
        "    return total / (len(values) - 1)\n",
    ),
    (
        "find_index",
        "def find_index(items, wanted):\n    for index in range(1, len(items)):\n"
        "        if items[index] == wanted:\n            return index\n    return -1\n",
    ),
    (
        "count_words",
        "def count_words(text):\n    counts = {}\n    for word in text.split():\n"
        "        counts[word] = counts.get(word, 1) + 1\n    return counts\n",
    ),
    (
        "is_palindrome",
        "def is_palindrome(text):\n    letters = [c.lower() for c in text if c.isalpha()]\n"
        "    for i in range(len(letters) // 2):\n        if letters[i] != letters[-i]:\n"
        "            return False\n    return True\n",
    ),
)
QUESTIONS = (
    "Why is the sky blue during the day and red in the evening?",
    "How do I keep a sourdough starter alive when I travel for two weeks?",
    "What should I look at first when my bicycle makes a clicking noise?",
    "Tell me a short story about a lighthouse keeper who is afraid of the dark.",
    "How can a small library attract more young readers?",
    "What is the difference between weather and climate?",
    "Give me advice for learning to play the piano as an adult.",
    "Why did the Roman empire need so many roads?",
    "How does a refrigerator work?",
    "What makes a good neighbour?",
    "Explain to a child what a prime number is.",
    "How should I prepare for my first half marathon?",
    "What are the advantages of living in a small town?",
    "Write a few lines about the first snow of the year.",
    "How do bees find their way home?",
    "Why do people like to listen to sad music?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A chat. Its answer may begin with given words, which keep a small model on the subject."""

    question: str
    answer_begin: str = ""


def copying(rng: random.Random) -> list[Task]:
    """Thirty-two tasks: summaries, edits, code repair and extraction in turn."""
    makers: Sequence[Callable[[random.Random], Task]] = (summary, edit, repair, extraction)
    return [makers[i % len(makers)](rng) for i in range(32)]


def chatting(rng: random.Random) -> list[Task]:
    """Thirty-two open questions."""
    return [Task(question=question) for question in rng.sample(QUESTIONS * 2, 32)]


def summary(rng: random.Random) -> Task:
    """The most important sentences of a report."""
    report = " ".join(rng.sample(STORMS, 6))
    return Task(
        question=f"Here is a report:\n\n{report}\n\nRepeat its most important sentences word for "
        "word.",
        answer_begin="The most important sentences of the report are:\n\n",
    )


def edit(rng: random.Random) -> Task:
    """The same text with one small change."""
    first, second = rng.sample(NAMES, 2)
    city, other = rng.sample(CITIES, 2)
    things = rng.sample(GOODS, 3)
    text = (
        f"Dear {first},\n\nthank you for your letter from {city}. The {things[0]} that you ordered "
        f"has left our workshop today, and the {things[1]} will follow on Monday. We could not "
        f"find the {things[2]} in the colour that you wanted, so we send you the catalogue of "
        f"our branch in {other} instead. Please tell us before the end of the month which "
        f"one you like best.\n\nYours sincerely,\n{second}"
    )
    return Task(
        question=f"Change the word Monday to Friday in this letter and leave all else as it "
        f"is:\n\n{text}",
        answer_begin="Here is the changed letter:\n\nDear",
    )


def repair(rng: random.Random) -> Task:
    """A function with one wrong number."""
    name, code = rng.choice(FUNCTIONS)
    return Task(
        question=f"There is a mistake in this module:\n\n```python\n{code}\n\n"
        f"def main():\n    print({name}(load_{name}_input()))\n```\n\nWrite the whole module "
        "again without it.",
        answer_begin="```python\n",
    )


def extraction(rng: random.Random) -> Task:
    """Records as JSON."""
    rows = [
        f"{name} from {rng.choice(CITIES)} bought a {rng.choice(GOODS)} for {rng.randrange(5, 90)} "
        "euros."
        for name in rng.sample(NAMES, 4)
    ]
    return Task(
        question="\n".join(rows) + "\n\nWrite this as a JSON list with the keys name, city, "
        "article and price.",
        answer_begin='```json\n[\n  {"name": "',
    )
